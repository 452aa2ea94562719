"""The results of compiled models: outputs, gradients, mutations and state equal eager's."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.eager import (
    assert_inference_is_eagers,
    assert_same,
    assert_training_is_eagers,
    call,
    twins,
)
from tests.support.models import CASES, Branchy, Case, Inception, Lstm
from tests.support.oracle import fewest_waits
from tests.support.threads import assert_threads_do_not_mix

NIMBLE: dict[str, Any] = {"policy": "nimble"}
"""On a CPU "auto" is the serial schedule; these are about the one with most streams."""


@pytest.fixture(autouse=True)
def _trace_rnns() -> Iterator[None]:
    """By default Dynamo leaves torch.nn.LSTM to eager; AOTAutograd traces its inference only."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def widths_hold() -> None:
    """What policy "nimble" promises, on every program compiled so far."""
    for program in nimble_fx.programs():
        program.verify()
        nimble_fx.verify_source(program.source)  # alone
        assert program.graph.n_streams == program.graph.width
        assert program.graph.n_waits == fewest_waits(program.graph)


OTHERWISE: tuple[dict[str, Any], ...] = (
    {"policy": "serial"},
    {"policy": "critical-path"},
    NIMBLE | {"max_streams": 2},
    {},
)
"""What is traced is the same; three models have all that a schedule can make of it."""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, NIMBLE) for name in CASES),
        *((name, options) for name in ("dropout", "cache", "views") for options in OTHERWISE),
    ],
    ids=str,
)
def test_inference_is_eagers(name: str, options: dict[str, Any]) -> None:
    assert_inference_is_eagers(CASES[name], options)
    assert nimble_fx.programs()
    assert all(p.graph.n_streams <= options.get("max_streams", 99) for p in nimble_fx.programs())
    if options == NIMBLE:
        widths_hold()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.trainable])
def test_training_is_eagers(name: str) -> None:
    assert_training_is_eagers(CASES[name], options=NIMBLE)
    assert len(nimble_fx.programs()) == 2
    widths_hold()


def test_pytorchs_own_lstm_trains_where_dynamo_leaves_it_to_eager() -> None:
    case = Case(Lstm, CASES["lstm"].inputs)
    model, eager = twins(case, train=True)
    x = torch.randn(2, 4, 6)
    with torch._dynamo.config.patch(allow_rnn=False):
        torch.compile(model, backend="nimble", options=NIMBLE)(x).sum().backward()
    eager(x).sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert_same(p.grad, q.grad)


def test_new_shapes_are_served_by_symbolic_sizes() -> None:
    model, eager = twins(CASES["branchy"], train=False)
    compiled = torch.compile(model, backend="nimble", options=NIMBLE, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 5, 8):
            x = torch.randn(rows, 4)
            assert_same(compiled(x), eager(x))
    assert len(nimble_fx.programs()) == 1


@pytest.mark.parametrize(
    "function", [math.sqrt, math.log2, math.exp, lambda n: round(n / 2), lambda n: round(n / 3, 1)]
)
def test_functions_of_symbolic_sizes_are_scheduled(function: Callable[[int], float]) -> None:
    def program(x: Tensor) -> Tensor:
        return x.clamp(max=function(x.shape[0])) * 2

    options = {**NIMBLE, "on_fallback": "error"}
    compiled = torch.compile(program, backend="nimble", options=options, dynamic=True)
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4)
        assert_same(compiled(x), program(x))


def test_a_float_that_changes_between_calls_is_scheduled() -> None:
    def program(x: Tensor, temperature: float) -> Tensor:
        return (x.t() / temperature).t().softmax(-1)

    compiled, x = (
        torch.compile(program, backend="nimble", options=NIMBLE),
        torch.randn(3, 4, requires_grad=True),
    )
    for temperature in (1.0, 2.0, 3.0):
        (ours,) = torch.autograd.grad(compiled(x, temperature).square().sum(), x)
        (expected,) = torch.autograd.grad(program(x, temperature).square().sum(), x)
        assert_same(ours, expected)
    widths_hold()


def test_batch_norm_in_training_opens_no_streams_for_its_bookkeeping() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3))
    torch.compile(model, backend="nimble", options=NIMBLE)(torch.randn(2, 3, 4, 4)).sum()
    (forward,) = nimble_fx.programs()
    assert forward.graph.n_streams == 1


class Residual(nn.Module):
    """Two normalised branches that an addition joins."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.right = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.left(x) + self.right(x))


def test_bookkeeping_of_branches_that_join_opens_no_streams() -> None:
    model = nn.Sequential(Residual(), Residual(), Residual())
    torch.compile(model, backend="nimble", options=NIMBLE)(torch.randn(2, 3, 4, 4)).sum()
    (forward,) = nimble_fx.programs()
    assert forward.graph.n_streams == 2


@pytest.mark.parametrize("options", [NIMBLE, {"device": "virtual"}], ids=str)
def test_a_torch_function_mode_is_applied_once(options: dict[str, Any]) -> None:
    class Doubles(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func in (torch.relu, Tensor.clone, Tensor.copy_) else result

    compiled = torch.compile(lambda x: torch.relu(x), backend="nimble", options=options)
    with torch.no_grad(), Doubles():
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("kernels", ["aten", "inductor"])
def test_operators_may_return_lists_among_other_results(kernels: str) -> None:
    def lists(x: Tensor) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        return [x + 1, x + 2], x.sum(), [x * 2, x * 3, x * 4]

    def program(x: Tensor) -> tuple[Tensor, ...]:
        (first, _), total, (_, second, third) = torch.ops.nimble_tests.lists(x)
        return (first + total).sin(), second.relu(), third.cos()

    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("lists(Tensor x) -> (Tensor[], Tensor, Tensor[])")
        library.impl("lists", lists, "CompositeExplicitAutograd")
        torch.library.register_fake("nimble_tests::lists", lists, lib=library)
        x = torch.randn(3)
        options = NIMBLE | {"device": "virtual", "on_fallback": "error", "kernels": kernels}
        compiled = torch.compile(program, backend="nimble", options=options)
        with torch.no_grad():
            assert_same(compiled(x), program(x))
        widths_hold()


@pytest.mark.parametrize("factor", [2, 3])
def test_custom_operators_may_be_defined_anew(factor: int) -> None:
    @torch.library.custom_op("nimble_tests::scaled", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    scaled.register_fake(torch.empty_like)
    options: dict[str, Any] = {"device": "virtual", "on_fallback": "error"}
    compiled = torch.compile(lambda x: scaled(x).sin(), backend="nimble", options=options)
    x = torch.randn(3)
    with torch.no_grad():
        assert_same(compiled(x), (x * factor).sin())


@dataclass(frozen=True)
class Forgets:
    """A policy during which PyTorch forgets the object of an operator, as a finalizer makes it."""

    name = "forgets"

    def __call__(self, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        delattr(torch.ops.nimble_tests, "forgotten")
        return graph.replace_tasks(
            task.updated(stream=0) if task.launches else task for task in graph.tasks
        )


def test_pytorch_may_make_another_object_of_a_custom_operator() -> None:
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("forgotten(Tensor x) -> Tensor")
        library.impl("forgotten", lambda x: x * 2, "CPU")
        library.impl("forgotten", torch.empty_like, "Meta")

        def program(x: Tensor) -> Tensor:
            result: Tensor = torch.ops.nimble_tests.forgotten(x).sin()
            return result

        x = torch.randn(3)
        options: dict[str, Any] = {"policy": Forgets(), "on_fallback": "error"}
        with torch.no_grad():
            result = torch.compile(program, backend="nimble", options=options)(x)
        assert torch.equal(result, (x * 2).sin())


def test_custom_operators_run_in_program_order() -> None:
    seen: list[float] = []
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("log(Tensor x) -> Tensor")

        def log(x: Tensor) -> Tensor:
            seen.append(float(x.sum()))
            return x + torch.rand_like(x)

        library.impl("log", log, "CPU")
        library.impl("log", torch.empty_like, "Meta")

        def program(x: Tensor) -> Tensor:
            op = torch.ops.nimble_tests.log.default
            return op(x) + op(x.exp().sin().cos()) + op(x * 2) + torch.rand_like(x)

        x = torch.randn(3)
        with torch.no_grad():
            assert_same(
                call(torch.compile(program, backend="nimble", options=NIMBLE), (x,)),
                call(program, (x,)),
            )
    assert seen[:3] == seen[3:]


def test_names_that_python_reads_as_others_do_no_harm() -> None:
    class Greek(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d = nn.ParameterDict({"\u00b5": torch.ones(2), "\u03bc": torch.full((2,), 2.0)})

        def forward(self, x: Tensor) -> Tensor:
            return x * self.d["\u00b5"] - self.d["\u03bc"]

    model, x = Greek(), torch.randn(2)
    assert_same(torch.compile(model, backend="nimble", options=NIMBLE)(x), model(x))
    assert nimble_fx.programs()


def test_a_users_name_that_is_a_nodes_name_in_the_backward_does_no_harm() -> None:
    def program(mul: Tensor, t: Tensor, add: Tensor) -> Tensor:
        return (mul * t + add).exp()

    inputs = [torch.randn(3, requires_grad=True) for _ in range(3)]
    torch.compile(program, backend="nimble", options=NIMBLE)(*inputs).sum().backward()
    grads = [x.grad for x in inputs]
    expected = torch.autograd.grad(program(*inputs).sum(), inputs)
    assert_same(grads, list(expected))
    assert len(nimble_fx.programs()) == 2


def complex_numbers(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.fft(x) * 1j).sum(0)


def data_dependent(x: Tensor) -> Tensor:
    positive = x[x > 0]
    return positive.unique().sum() * positive.shape[0]


def reads_a_number(x: Tensor) -> Tensor:
    return x * x.sum().item()


def sparse(x: Tensor) -> Tensor:
    return torch.sparse.mm(x.to_sparse(), x)


def nested(x: Tensor) -> Tensor:
    pieces = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
    return torch.relu(pieces).values() + 1


@pytest.mark.parametrize(
    "function", [complex_numbers, data_dependent, reads_a_number, sparse, nested]
)
@pytest.mark.parametrize("capture", [False, True], ids=["breaks", "captured"])
@pytest.mark.filterwarnings("ignore::nimble_fx.NimbleWarning")
def test_unusual_tensors_and_data_dependence_compute_the_right_thing(
    function: Callable[[Tensor], Tensor], capture: bool
) -> None:
    x = torch.randn(4, 4)
    settings = {"capture_scalar_outputs": capture, "capture_dynamic_output_shape_ops": capture}
    with torch._dynamo.config.patch(settings):
        assert_same(torch.compile(function, backend="nimble", options=NIMBLE)(x), function(x))


def test_complex_inputs_are_scheduled() -> None:
    def program(z: Tensor) -> Tensor:
        return (z.conj() * z).real + z.abs()

    z = torch.randn(3, dtype=torch.complex64)
    assert_same(torch.compile(program, backend="nimble", options=NIMBLE)(z), program(z))
    assert nimble_fx.programs()


def test_an_exception_inside_leaves_nothing_behind() -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble", options=NIMBLE)
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = compiled(x).clone()
        weight = model.a.weight.data
        model.a.weight.data = weight.double()
        with pytest.raises(RuntimeError):
            compiled(x)
        model.a.weight.data = weight
        assert torch.equal(compiled(x), expected)


def test_parameters_updated_in_place_and_loaded_are_seen() -> None:
    model, eager = twins(CASES["googlenet"], train=False)
    options = NIMBLE | {"fold_weights": True}
    compiled = torch.compile(model, backend="nimble", options=options)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        compiled(x)
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            p.add_(0.01)
            q.add_(0.01)
        assert_same(compiled(x), eager(x))
        state = CASES["googlenet"].model().state_dict()
        model.load_state_dict(state)
        eager.load_state_dict(state)
        assert_same(compiled(x), eager(x))


def test_threads_call_one_compiled_model_at_once() -> None:
    model = Inception().eval()
    options = NIMBLE | {"fold_weights": False}  # eager's bits
    compiled = torch.compile(model, backend="nimble", options=options)
    inputs = [torch.randn(1, 8, 6, 6) for _ in range(8)]
    with torch.no_grad():
        compiled(inputs[0])
    assert_threads_do_not_mix(compiled, model, inputs, n_calls=5)
