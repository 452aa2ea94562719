"""Operators on virtual streams are queued, and their results are eager's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.virtual.device import Virtual
from tests.support.bits import assert_same_bits

aten = torch.ops.aten


def queued(device: Virtual, function: Callable[..., Any], *inputs: Any) -> Any:
    """What the function returns before any of its kernels has run."""
    with device.streams(1)[0]:
        return function(*inputs)


def test_results_are_poison_until_the_queues_have_run() -> None:
    device, x = Virtual(), torch.randn(3, 4)
    result = queued(device, lambda: torch.relu(x).t() + 1)
    assert result.isnan().all()
    device.synchronize()
    assert_same_bits(result, torch.relu(x).t() + 1)


def test_views_are_made_at_once_and_of_memory_that_is_written_later() -> None:
    device, x = Virtual(), torch.randn(3, 4)

    def program() -> tuple[Tensor, ...]:
        y = torch.exp(x)
        return y, y[1:].t(), aten._unsafe_view.default(y, [12]), aten.reshape.default(y, [4, 3])

    y, *views = queued(device, program)
    assert {view.data_ptr() - y.data_ptr() for view in views} == {0, 4 * y.itemsize}
    device.synchronize()
    assert_same_bits([y, *views], list(program()))


def test_writes_to_a_view_are_seen_in_the_whole_and_counted_as_versions() -> None:
    device, x, y = Virtual(), torch.zeros(2, 3), torch.ones(3)
    version = x._version
    result = queued(device, lambda: x[1].add_(y))
    assert torch.equal(x, torch.zeros(2, 3))
    device.synchronize()
    assert_same_bits((x, result), (torch.tensor([[0.0] * 3, [1.0] * 3]), torch.ones(3)))
    assert result.data_ptr() == x[1].data_ptr()
    assert x._version > version


def test_an_operator_that_returns_its_argument_returns_that_very_tensor() -> None:
    device, x = Virtual(), torch.zeros(3)
    assert queued(device, lambda: x.add_(1)) is x
    assert queued(device, lambda: x.unsqueeze_(0)) is x
    assert x.shape == (1, 3)


def test_several_results_each_have_memory_of_their_own() -> None:
    device, x = Virtual(), torch.randn(3, 4)
    values, indices = queued(device, lambda: torch.sort(x, dim=1))
    device.synchronize()
    assert_same_bits((values, indices), tuple(torch.sort(x, dim=1)))
    assert not device.keeps_alive(values)
    assert not device.keeps_alive(indices)
    assert values.data_ptr() != indices.data_ptr()


def test_a_workspace_that_only_its_fake_has_stays_poison() -> None:
    device, x, lstm = Virtual(), torch.randn(1, 2, 4), torch.nn.LSTM(4, 4)
    with torch.no_grad():
        output, (hidden, _) = queued(device, lstm, x)
        device.synchronize()
        torch.testing.assert_close((output, hidden), (lstm(x)[0], lstm(x)[1][0]))


def test_uninitialized_memory_holds_poison_even_where_numbers_were() -> None:
    device = Virtual()

    def program() -> Tensor:
        torch.zeros(5).add_(1)  # its block is what the next tensor is given
        return torch.empty(5)

    result = queued(device, program)
    device.synchronize()
    assert result.isnan().all()


def test_a_custom_operator_may_be_named_like_one_that_writes_nothing() -> None:
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("empty(Tensor x) -> Tensor")
        library.impl("empty", torch.cos, "CompositeExplicitAutograd")
        device, x = Virtual(), torch.randn(3)
        result = queued(device, torch.ops.nimble_tests.empty, x)
        device.synchronize()
    assert torch.equal(result, x.cos())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16])
def test_uninitialized_memory_is_eagers_where_pytorch_fills_it(dtype: torch.dtype) -> None:
    device = Virtual()
    torch.use_deterministic_algorithms(True)
    try:
        result = queued(device, lambda: torch.empty(5, dtype=dtype))
        device.synchronize()
        assert_same_bits(result, torch.empty(5, dtype=dtype))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.full((2,), x.sum().item()),
        torch.unique,
        lambda x: torch.poisson(x.abs()),
    ],
)
def test_operators_that_need_values_wait_for_the_queues(
    function: Callable[[Tensor], Tensor],
) -> None:
    device, x = Virtual(), torch.arange(-3.0, 4.0)
    torch.manual_seed(3)
    result = queued(device, lambda: function(torch.flip(x, [0])) * 2)
    device.synchronize()
    torch.manual_seed(3)
    assert torch.equal(result, function(torch.flip(x, [0])) * 2)


def test_operators_that_need_values_are_errors_in_a_capture() -> None:
    device, x = Virtual(), torch.ones(3)

    def program(streams: tuple[Any, ...]) -> list[Tensor]:
        with streams[0]:
            return [x.nonzero()]

    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        device.capture(1, program, device.pool())


def draws(x: Tensor) -> list[Tensor]:
    mask, kept = torch.native_dropout(x, 0.5, True)
    return [
        torch.rand(3),
        torch.randn_like(x),
        torch.bernoulli(x.sigmoid()),
        torch.randperm(7),
        torch.multinomial(x.softmax(0), 2),
        torch.normal(x, 2.0),
        x.clone().uniform_(),
        mask,
        kept,
    ]


def test_random_draws_are_eagers_in_any_order() -> None:
    device, x = Virtual(), torch.randn(5)

    def program(streams: tuple[Any, ...]) -> list[Tensor]:
        events = device.events(("fork", "a", "b"))
        results = []
        events.fork.record(streams[0])
        for stream, event in zip(streams[1:], (events.a, events.b), strict=True):
            stream.wait_event(events.fork)
            with stream:
                results += draws(x)
            event.record(stream)
            streams[0].wait_event(event)
        return results

    capture = device.capture(3, program, device.pool())
    for seed in range(10):
        torch.manual_seed(seed)
        expected, after = draws(x) + draws(x), torch.rand(1)
        torch.manual_seed(seed)
        capture.replay()
        assert_same_bits([*capture.outputs, torch.rand(1)], [*expected, after])


def test_a_kernels_error_names_the_operator_and_the_line_of_the_module_that_launched_it() -> None:
    """It is raised when somebody waits for the kernel, long after that line."""
    table = torch.ones(5, 4)
    compiled = torch.compile(
        lambda i: nn.functional.embedding(i, table) + 1,
        backend="nimble",
        options={"device": "virtual"},
    )
    with torch.no_grad(), pytest.raises(IndexError) as raised:
        compiled(torch.tensor([7]))
    (note,) = raised.value.__notes__
    (program,) = nimble_fx.programs()
    *_, line = note.split(f"kernel of aten.embedding.default, launched at {program.file}:")
    number, _, code = line.partition(": ")
    assert program.source.splitlines()[int(number) - 1].strip() == code
    assert "aten.embedding.default(" in code


def test_a_kernels_error_is_raised_and_the_next_program_runs() -> None:
    device, table = Virtual(), torch.randn(3, 2)
    wrong = queued(device, lambda: torch.embedding(table, torch.tensor([7])))
    with pytest.raises(IndexError):
        device.synchronize()
    assert wrong.isnan().all()
    right = queued(device, lambda: torch.embedding(table, torch.tensor([2])))
    device.synchronize()
    assert_same_bits(right, table[2:])


def test_inference_mode_and_composite_operators_give_eagers_results() -> None:
    device, x = Virtual(), torch.randn(3, 3)
    with torch.inference_mode():
        result = queued(device, lambda: (x @ x).reshape(9).to(torch.float64).expand_as(x.flatten()))
        device.synchronize()
        assert_same_bits(result, (x @ x).reshape(9).to(torch.float64))


def test_empty_tensors_need_no_memory() -> None:
    device, x = Virtual(), torch.randn(0, 3)
    result = queued(device, lambda: (x.exp(), x.sum(0)))
    device.synchronize()
    assert_same_bits(result, (x.exp(), x.sum(0)))


def test_parameters_and_conjugates_are_arguments_like_others() -> None:
    device, p = Virtual(), torch.nn.Parameter(torch.randn(3))
    z = torch.randn(3, dtype=torch.complex64)
    with torch.no_grad():
        result = queued(device, lambda: (p * 2, torch.exp(z).conj() * z.conj(), p.t()))
        device.synchronize()
        assert_same_bits(result[:2], (p * 2, torch.exp(z).conj() * z.conj()))
