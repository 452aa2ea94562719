"""Predicted results of operators equal those of their kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.devices.virtual.results import returned_by
from nimble_fx.errors import OperatorError
from nimble_fx.rewrites.kernel_registry import registered
from tests.support.eager import assert_same
from tests.support.opaque_memory import LSTM_BACKWARD, made_up_arguments

aten = torch.ops.aten
VIRTUAL: dict[str, Any] = {"device": "virtual", "policy": "nimble"}


def test_inductors_kernels_do_not_run_on_made_up_values() -> None:
    calls: list[Tensor] = []

    def kernel(x: Tensor) -> Tensor:
        calls.append(x)
        return x + 1

    schema = "(Tensor x) -> Tensor"
    operator = registered("divides", ("test_results",), schema, kernel, torch.empty_like, "")
    returned = returned_by(operator, (torch.ones(2, 3),), {})
    assert returned is not None
    assert returned.difference(torch.ones(2, 3)) is None
    assert calls == []


def half(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def rnn_layer(x: Tensor) -> tuple[Any, ...]:
    weights = [torch.randn(n) for n in ((16, 4), (16, 4), (16,), (16,))]
    state = torch.zeros(2, 4)
    sizes: tuple[Any, ...] = (False, [], 2, 4, 1, True, False, False, True)
    return (x, *weights, state, state, *sizes)


def solvable() -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots = torch.linalg.lu_factor(torch.randn(3, 3))
    return factors, pivots, torch.randn(3, 2)


ones, zeros = torch.ones(4), torch.zeros(4)
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.native_batch_norm.default, (half(2, 4, 3), ones, zeros, zeros, ones, True, 0.1, 1e-5)),
    (aten.native_layer_norm.default, (half(3, 4), [4], ones, zeros, 1e-5)),
    (aten.native_group_norm.default, (half(2, 4, 3), ones, zeros, 2, 4, 3, 2, 1e-5)),
    (aten.mkldnn_rnn_layer.default, rnn_layer(torch.randn(3, 2, 4))),
    (aten.sort.default, (torch.randn(3, 4),)),
    (aten.index_select.default, (torch.randn(5, 3), 0, torch.tensor([4, 2]))),
    (aten.linalg_lu_solve.default, solvable()),
    (aten.cholesky_inverse.default, (torch.eye(3),)),
    (aten._fft_r2c.default, (torch.randn(4, 6), [0, 1], 0, True)),
    (aten.add_.Tensor, (torch.ones(3), torch.ones(3))),
    (aten.diagonal.default, (torch.randn(3, 3),)),
]


@pytest.mark.parametrize(
    ("operator", "args"), CALLS, ids=[f"{i}-{call[0]}" for i, call in enumerate(CALLS)]
)
def test_what_a_kernel_makes_is_what_was_said(operator: Any, args: tuple[Any, ...]) -> None:
    with torch.no_grad():
        returned = returned_by(operator, args, {})
        assert returned is not None
        assert returned.difference(operator(*args)) is None


def test_a_result_in_an_argument_is_known_as_that_argument_or_a_view_of_it() -> None:
    x = torch.ones(4, 4)[1:]
    same, view = (returned_by(op, (x,), {}) for op in (aten.relu_.default, aten.t.default))
    assert same is not None
    assert view is not None
    assert (same.results[0].base, same.results[0].is_argument) == (0, True)
    assert (view.results[0].base, view.results[0].is_argument) == (0, False)
    assert view.results[0].metadata is not None
    assert view.results[0].metadata.offset == 0  # from the argument's


def test_results_that_depend_on_values_are_not_known() -> None:
    assert returned_by(aten.nonzero.default, (ones,), {}) is None
    assert returned_by(aten._local_scalar_dense.default, (torch.ones(()),), {}) is None


def test_what_made_up_values_would_crash_is_not_run() -> None:
    args = made_up_arguments(torch.randn(5, 2, 4))
    assert returned_by(LSTM_BACKWARD, args, {}) is not None


def test_neither_arguments_nor_random_numbers_are_touched() -> None:
    x, state = torch.zeros(7, 3), torch.get_rng_state()
    assert returned_by(aten.uniform_.default, (x,), {}) is not None
    assert torch.equal(x, torch.zeros(7, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_another_default_dtype_is_another_result() -> None:
    dtypes = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            returned = returned_by(aten.ones.default, ([3],), {})
        finally:
            torch.set_default_dtype(torch.float32)
        assert returned is not None
        assert returned.results[0].metadata is not None
        dtypes.append(returned.results[0].metadata.dtype)
    assert dtypes == [torch.float32, torch.float64]


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(4), nn.LayerNorm([4, 3, 3]), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)]
)
def test_norms_of_two_dtypes_train_as_in_eager(layer: nn.Module) -> None:
    compiled = torch.compile(layer, backend="nimble", options=VIRTUAL)
    x = half(2, 4, 3, 3)
    assert_same(*[trained(run, layer, x) for run in (compiled, layer)])


def test_what_autocast_makes_of_convolutions_and_norms_trains_as_in_eager() -> None:
    layers = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
    compiled = torch.compile(layers, backend="nimble", options=VIRTUAL)
    x = torch.randn(2, 4, 5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(*[trained(run, layers, x) for run in (compiled, layers)])


def trained(run: Callable[..., Any], layer: nn.Module, x: Tensor) -> list[Any]:
    """What comes out, and the gradients; the layer's buffers are put back."""
    x = x.clone().requires_grad_()
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    y = run(x)
    slopes = torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])
    after = [buffer.clone() for buffer in layer.buffers()]
    layer.load_state_dict(state)
    return [y.detach(), slopes, after]


@pytest.mark.slow
def test_an_lstm_trains_as_by_aot_eager_or_fails_like_it() -> None:
    """Traced, it takes a workspace for granted which its kernel does not always return."""
    layer, x, results = nn.LSTM(4, 4), torch.randn(3, 2, 4), []
    for options in ({"backend": "nimble", "options": VIRTUAL}, {"backend": "aot_eager"}):
        torch.compiler.reset()
        compiled = torch.compile(layer, **options)
        try:
            with torch._dynamo.config.patch(allow_rnn=True):
                results.append(trained(lambda x: compiled(x)[0], layer, x))  # noqa: B023
        except Exception as error:
            results.append([type(error)])
    assert_same(*results)


def test_what_returns_nothing_is_done_once(capfd: pytest.CaptureFixture[str]) -> None:
    device = Virtual()
    with device.streams(1)[0]:
        aten._print.default("a line")
    assert "a line" not in capfd.readouterr().out
    device.synchronize()
    assert capfd.readouterr().out.count("a line") == 1


@pytest.fixture
def calls() -> list[int]:
    return []


@pytest.fixture
def transposing(calls: list[int]) -> Any:
    """An operator of the user's whose fake tensor has other strides than what it returns."""

    def transposed(x: Tensor) -> Tensor:
        calls.append(1)
        return (x * 2).t().contiguous().t()

    with torch.library._scoped_library("nimble_samples", "FRAGMENT") as library:
        library.define("transposing(Tensor x) -> Tensor")
        library.impl("transposing", transposed, "CPU")
        library.impl("transposing", torch.empty_like, "Meta")
        yield torch.ops.nimble_samples.transposing


def test_what_is_not_as_was_said_is_an_error_that_names_operator_and_line(
    transposing: Any,
) -> None:
    compiled = torch.compile(transposing, backend="nimble", options=VIRTUAL)
    with torch.no_grad(), pytest.raises(OperatorError) as raised:
        compiled(torch.ones(2, 3))
    (program,) = nimble_fx.programs()
    assert "strides [1, 2], not torch.float32 of shape [2, 3] and strides [3, 1]" in str(
        raised.value
    )
    assert f"[{program.file}:" in str(raised.value)
    assert "nimble_samples.transposing.default" in str(raised.value)


def test_an_operator_of_the_users_is_never_run_on_made_up_values(
    transposing: Any, calls: list[int]
) -> None:
    assert returned_by(transposing.default, (torch.ones(2, 3),), {}) is not None
    assert not calls
