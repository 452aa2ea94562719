"""Results of a replay belong to the caller, and share memory as in eager."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.runtime.capture.outputs import OutputBuilder
from tests.support.eager import assert_same, assert_training_is_eagers
from tests.support.models import CASES, Branchy
from tests.support.replaying import ReplayingDevice, frozen


def test_outputs_are_the_callers_to_keep(device: ReplayingDevice) -> None:
    run = frozen(lambda x: (x.exp(), x.exp()[0]), torch.randn(2, 2), device=device)
    inputs = [torch.randn(2, 2) for _ in range(3)]
    outputs = [run([x]) for x in inputs]
    for x, output in zip(inputs, outputs, strict=True):
        assert_same(list(output), [x.exp(), x.exp()[0]])


def test_outputs_that_share_memory_share_it_again_and_keep_their_strides(
    device: ReplayingDevice,
) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y, y[1], y.t(), x.sin()

    for x in (torch.randn(2, 3), torch.randn(2, 3)):
        y, row, transposed, apart = frozen(program, x, device=device)([x])
        y.zero_()
        assert torch.equal(row, torch.zeros(3))
        assert torch.equal(transposed, torch.zeros(3, 2))
        assert transposed.stride() == (1, 3)
        assert torch.equal(apart, x.sin())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp()[:1], x.sin()),
        lambda x: x.exp()[:2].expand(2, 2),
        lambda x: x.exp().as_strided((2, 2), (1, 1)),
        lambda x: (x.exp().view(2, 2).t(), x.sin()[::2]),
        lambda x: (lambda y: (y[:1], y, y[2:]))(x.exp()),
        lambda x: x.exp().view(1, 2, 2)[:, -1],
        lambda x: x.exp().view(2, 2)[:, 1:],
        lambda x: x.exp().view(2, 2)[:, 1].expand(3, 2),
        lambda x: torch.view_as_complex(x.exp().view(2, 2))[1:].conj(),
        lambda x: torch.view_as_complex(x.exp().view(2, 2))[::2].conj(),
        lambda x: x.exp()[4:],
        lambda x: (lambda y: (y, y))(x.exp()[1::2]),
    ],
)
def test_outputs_that_are_parts_of_a_storage_have_eagers_values_strides_and_offsets(
    function: Callable[[Tensor], Any], device: ReplayingDevice
) -> None:
    for x in (torch.randn(4), torch.randn(4)):
        ours, expected = frozen(function, x, device=device)([x]), function(x)
        expected = list(expected) if isinstance(expected, tuple) else [expected]
        assert_same(list(ours), expected)
        assert [y.stride() for y in ours] == [y.stride() for y in expected]
        assert [y.storage_offset() for y in ours] == [y.storage_offset() for y in expected]


def test_the_next_program_may_read_a_result_of_which_an_output_is_a_part() -> None:
    """By offsets in memory, which PyTorch's guards do not compare."""

    def program(x: Tensor) -> Tensor:
        part = (x * 2)[4:20]
        torch._dynamo.graph_break()
        return part.as_strided((6,), (4,), 2) + 1

    options: dict[str, Any] = {"device": "virtual", "on_fallback": "silent"}
    compiled = torch.compile(program, backend="nimble", options=options)
    for x in torch.randn(3, 24):
        assert_same(compiled(x), program(x))


def test_tensors_with_gaps_that_share_memory_may_be_written_by_the_next_program() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.new_zeros(x.shape[0], 2 * x.shape[1])[:, ::2]
        y.copy_(x)
        transposed = y.t()
        torch._dynamo.graph_break()
        transposed.mul_(2)
        return y + 1

    options: dict[str, Any] = {"device": "virtual", "on_fallback": "silent"}
    compiled = torch.compile(program, backend="nimble", options=options)
    for x in torch.randn(3, 3, 3):
        assert_same(compiled(x), program(x))


def test_parts_of_a_storage_that_are_written_to_are_noticed_in_each_other(
    device: ReplayingDevice,
) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y[1:], y[1:].view(2, 1)

    for x in (torch.randn(3), torch.randn(3)):
        rows, column = frozen(program, x, device=device)([x])
        product = torch.ones(2, requires_grad=True) * rows
        column.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_writing_to_an_output_that_the_backward_needs_is_an_error(device: ReplayingDevice) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.a(x).tanh()
            return hidden.exp(), hidden

    result, hidden = torch.compile(Keeps(), backend="nimble")(torch.randn(2, 4))
    with torch.no_grad():
        hidden.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize(
    "function", [lambda x: x > 0, lambda x: x.long() + 1, lambda x: (x.exp(), x)]
)
def test_empty_outputs_are_not_taken_for_empty_inputs(
    function: Callable[[Tensor], Any], device: ReplayingDevice
) -> None:
    x = torch.randn(0, 3)
    ours = frozen(function, x, device=device)([x])
    expected = function(x)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    assert [y.dtype for y in ours] == [y.dtype for y in expected]
    assert_same(ours, expected)


def test_an_output_in_another_dtype_shares_memory_too(device: ReplayingDevice) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y.view(torch.int32)[1:]

    for x in (torch.randn(4), torch.randn(4)):
        y, whole = frozen(program, x, device=device)([x])
        assert torch.equal(y[1:].view(torch.int32), whole)
        assert whole.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_an_output_that_is_a_later_part_of_an_input_that_starts_late(
    device: ReplayingDevice,
) -> None:
    x = torch.arange(10.0)[2:]

    def program(x: Tensor) -> list[Tensor]:
        return [x[3:], x.exp()[2:], x.exp(), x.view(torch.int16)[1:]]

    assert_same(list(frozen(program, x, device=device)([x])), program(x))


def test_an_output_that_is_an_input_or_a_view_of_one_is_the_callers(
    device: ReplayingDevice,
) -> None:
    x = torch.randn(4, 4)
    run = frozen(lambda x: (x, x.t(), x[1:], x.cos()), x, device=device)
    for _ in range(2):
        same, transposed, rows, _cosine = run([x])
        assert same is x
        assert transposed.data_ptr() == x.data_ptr()
        assert torch.equal(rows, x[1:])
        assert rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_an_output_that_is_a_parameter_is_the_callers(device: ReplayingDevice) -> None:
    weight = torch.randn(4, 4)
    run = frozen(lambda w: (w, w.cos()), weight, device=device, are_static=True)
    for _ in range(2):
        assert run([weight])[0] is weight


def test_outputs_alias_the_graphs_memory_only_if_nothing_else_shares_theirs() -> None:
    buffer, parameter, copied, own = (torch.zeros(2, 2) for _ in range(4))
    outputs = [buffer[1:], parameter.t(), copied, copied[1:], own, own.t(), None]
    builder = OutputBuilder(outputs, [buffer, 7], [parameter], in_place={0, 1, 3, 4, 5, 6})
    assert builder.in_place == {4, 5}


def test_without_copies_outputs_are_what_the_next_call_overwrites(device: ReplayingDevice) -> None:
    options: dict[str, Any] = {"copy_outputs": False}
    compiled = torch.compile(Branchy(), backend="nimble", options=options)
    x = torch.randn(2, 4)
    with torch.no_grad():
        first = compiled(x)
        before = first.clone()
        second = compiled(x + 1)
    assert first is not second
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(first, second)
    assert not torch.equal(first, before)


def test_without_copies_a_model_trains_as_in_eager(device: ReplayingDevice) -> None:
    assert_training_is_eagers(CASES["branchy"], options={"copy_outputs": False})


def test_without_copies_no_output_overwrites_that_of_another_model(
    device: ReplayingDevice,
) -> None:
    options: dict[str, Any] = {"copy_outputs": False}
    models = [Branchy(), Branchy()]
    one, other = (torch.compile(m, backend="nimble", options=options) for m in models)
    x = torch.randn(2, 4)
    with torch.no_grad():
        one(x)
        kept = other(x)
        one(x + 1)
        assert_same(kept, models[1](x))


def test_without_copies_no_output_overwrites_that_of_another_size(device: ReplayingDevice) -> None:
    def program(x: Tensor) -> Tensor:
        return (x.exp() * x.sin()).cos()  # lies where a result was that nothing reads any more

    options: dict[str, Any] = {"copy_outputs": False, "policy": "serial"}
    compiled = torch.compile(program, backend="nimble", dynamic=True, options=options)
    small, large = torch.randn(2, 4), torch.randn(3, 4)
    compiled(large)
    kept = compiled(small)
    compiled(large)
    assert_same(kept, program(small))


def test_without_copies_an_output_may_come_back_as_an_input_that_is_written(
    device: ReplayingDevice,
) -> None:
    def program(x: Tensor) -> Tensor:
        return x.add_(1) * 2

    options: dict[str, Any] = {"copy_outputs": False}
    compiled = torch.compile(program, backend="nimble", options=options)
    for run in (compiled, program):
        y = run(torch.zeros(3))
        assert torch.equal(run(y), torch.full((3,), 6.0))


@pytest.mark.parametrize(
    "model", [nn.Linear(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Conv1d(3, 2, 1), nn.Tanh())]
)
def test_results_that_are_none_are_handed_out_too(
    model: nn.Module, device: ReplayingDevice
) -> None:
    eager = copy.deepcopy(model)
    compiled, x = torch.compile(model, backend="nimble"), torch.randn(3, 4)
    for _ in range(2):
        for net, run in ((model, compiled), (eager, eager)):
            net.zero_grad()
            run(x).square().sum().backward()
        assert_same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])


def test_a_view_of_a_parameter_that_has_moved_within_its_memory(device: ReplayingDevice) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.w.view(2, 2), x + self.w

    numpy = pytest.importorskip("numpy")
    memory, model = numpy.arange(8, dtype=numpy.float32), Views()
    compiled, x = torch.compile(model, backend="nimble"), torch.ones(4)
    whole = torch.from_numpy(memory)
    with torch.no_grad():
        for data in (whole[4:], torch.from_numpy(memory[4:])):
            model.w.data = data
            assert_same(list(compiled(x)), list(model(x)))


@pytest.mark.parametrize(
    ("dtype", "view"),
    [
        (torch.float32, lambda w: w.view(torch.int16)[1:]),
        (torch.float32, lambda w: w.view(torch.uint8)),
        (torch.float16, lambda w: w.view(torch.float32)),
        (torch.complex64, torch.view_as_real),
        (torch.complex64, lambda w: w.conj()[1:].imag),
    ],
)
def test_a_view_in_another_dtype_of_a_parameter_that_starts_late(
    dtype: torch.dtype, view: Callable[[Tensor], Tensor], device: ReplayingDevice
) -> None:
    """As of weights that are parts of one flat tensor, whose memory is never touched."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", flat[6:10].view(2, 2))
            self.w: Tensor

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.w, view(self.w)

    pytest.importorskip("numpy")
    flat = torch.from_numpy(torch.randn(12, dtype=dtype).numpy())  # it cannot be resized
    model, x = Views(), torch.randn(2, 2, dtype=dtype)
    with torch.no_grad():
        compiled = torch.compile(model, backend="nimble")
        expected = list(model(x))
        assert_same(list(compiled(x)), expected)
        (program,) = nimble_fx.programs()
        bound = program.bind(model)  # in which no wrapper of AOTAutograd makes the views
        for _ in range(2):
            assert_same(bound(x)[:2], expected)
    assert flat.untyped_storage().nbytes() == 12 * dtype.itemsize
