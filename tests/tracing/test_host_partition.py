"""The CPU's part of a GPU's program runs first, and results are eager's."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import nimble_fx
from nimble_fx import this_machine
from nimble_fx.devices import device_for
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.types import TensorType
from nimble_fx.tracing.host_partition import Partition, copy_to_device, split
from nimble_fx.tracing.move_to_device import move_to_device, other_device
from tests.support.bits import assert_same_bits
from tests.support.two_devices import GPU, graph_of, with_values

Function = Callable[..., Any]
STATEMENTS = (
    "s = s + 1",
    "s = s.exp()",
    "s = s * i.sum()",
    "i = i.flip(0)",
    "i = (2 * i + s.long()) % 3",
    "i = torch.arange(3)[i]",
    "i = torch.where(i > s, i, 0)",
    "z = z * s",
    "z = z[i]",
    "z = z[:, i] + z[i[:2].sum() % 3 + torch.arange(1)]",
    "z = z.index_put((i,), s)",
    "z = z + s.to(z.device)",
    "z = torch.where(z > s, z, s)",
    "z = z.masked_fill(z > s, i[0])",
    "z = z @ z",
    "s.add_(1)",
    "i.clamp_(0, 1)",
    "z.mul_(s)",
)
"""Statements of a program on two devices: z is on the GPU, s and i are on the CPU."""

PROGRAMS = st.tuples(
    st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=8),
    st.sampled_from(["z", "z, s", "z, i", "s, z, i, z + 1", "i[1:], z"]),
)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.arange(9.0).view(3, 3), torch.tensor(0.5), torch.tensor([2, 0, 1])


def program_of(statements: list[str], returned: str) -> Function:
    body = "\n ".join(["def program(z, s, i):", *statements, f"return {returned},"])
    names: dict[str, Any] = {"torch": torch}
    exec(body, names)
    made: Function = names["program"]
    return made


def parts_of(function: Function) -> Partition | None:
    z, *here = inputs()
    return split(move_to_device(graph_of(function, [z], here)))


@given(PROGRAMS)
def test_both_parts_give_and_write_what_eager_does(drawn: tuple[list[str], str]) -> None:
    program = program_of(*drawn)
    parts = parts_of(program)
    if parts is None:  # the CPU is not in what is returned or used
        return
    assert other_device(parts.device) is None
    ours, theirs = inputs(), inputs()
    host, device = with_values(parts.host), with_values(parts.device)
    for part in (host, device):
        part.graph.lint()
    run = parts.run(lambda given: device(*given))
    assert_same_bits(run([*ours]), list(program(*theirs)))
    assert_same_bits(ours, theirs)


def test_what_runs_both_parts_keeps_no_graph_alive() -> None:
    parts = parts_of(program_of(["s = s + 1", "z = z * s"], "z"))
    assert parts is not None
    graphs = [weakref.ref(with_values(part).graph) for part in (parts.host, parts.device)]
    run = parts.run(lambda given: given)
    del parts
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]
    z, s, i = inputs()
    assert_same_bits(run([z, s, i]), [z])


@given(PROGRAMS)
def test_there_are_two_parts_of_whatever_the_cpu_begins(drawn: tuple[list[str], str]) -> None:
    z, *here = inputs()
    gm = move_to_device(graph_of(program_of(*drawn), [z], here))
    assert (split(gm) is None) == (other_device(gm) is None)


WAITS: dict[str, Function] = {
    "a result": lambda z, s, i: (z * z.sum().cpu(),),
    "a result that is returned": lambda z, s, i: (z.sum().cpu(), z * s),
}


@pytest.mark.parametrize("name", WAITS)
def test_where_the_cpu_needs_what_the_gpu_makes_there_are_no_parts(name: str) -> None:
    assert parts_of(WAITS[name]) is None


def test_what_the_host_goes_on_to_write_has_been_copied() -> None:
    value = torch.ones(2)
    copied = copy_to_device(value, device=torch.device("cpu"), dtype=torch.float64)
    assert_same_bits(copied, torch.ones(2, dtype=torch.float64))
    assert copy_to_device(value, device=GPU).device == GPU


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("kwargs", [{}, {"non_blocking": False}, {"non_blocking": True}], ids=str)
def test_the_host_waits_for_copies_from_pinned_memory_unless_the_model_says_not_to(
    is_pinned: bool, kwargs: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA copies from there after it returns, when the host may have written there."""
    asked = list[bool]()

    class Asked(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append(kwargs.get("non_blocking", False))
            return func(*args, **kwargs)

    x = torch.ones(2)
    monkeypatch.setattr(Tensor, "is_pinned", lambda _: is_pinned)
    with Asked():
        copy_to_device(x, device=torch.device("meta"), **kwargs)
    assert asked == [not is_pinned or kwargs.get("non_blocking", False)]


@pytest.fixture
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs on "meta" run, on tensors without values."""
    known = {GPU: Cpu()}
    monkeypatch.setattr(this_machine, "device_for", lambda d: known.get(d) or device_for(d))


class Scaled(nn.Module):
    """A position and a scale on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4, device=GPU))

    def forward(self, x: Tensor, scale: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        where = torch.arange(2) + position
        return (x @ self.weight * scale)[where], position + 1


@pytest.mark.usefixtures("_a_gpu")
@pytest.mark.parametrize("is_training", [False, True])
def test_a_model_of_a_gpu_that_takes_numbers_of_the_cpu_is_scheduled(is_training: bool) -> None:
    compiled = torch.compile(Scaled(), backend="nimble")
    x = torch.empty(4, 4, device=GPU)
    with torch.set_grad_enabled(is_training):
        for i in range(2):
            y, following = compiled(x, torch.tensor(0.5), torch.tensor(i))
            assert (y.device, y.shape) == (GPU, (2, 4))
            assert following.item() == i + 1
            if is_training:
                y.sum().backward()
    assert nimble_fx.fallbacks() == ()
    programs = nimble_fx.programs()
    assert len(programs) == 1 + is_training
    for program in programs:
        types = [v.type for v in program.graph.values if isinstance(v.type, TensorType)]
        assert {each.device for each in types} == {GPU}
        assert not any(t.name.startswith("_to_copy") for t in program.graph.tasks)
    names = [value.name for value in programs[0].graph.inputs]
    assert "scale" in names


@pytest.mark.usefixtures("_a_gpu")
def test_where_there_are_no_parts_the_graph_runs_as_traced_and_the_node_is_named() -> None:
    compiled = torch.compile(lambda z: z.sin().cpu(), backend="nimble")
    with (
        torch.no_grad(),
        pytest.warns(nimble_fx.NimbleWarning, match="second device"),
        pytest.raises(NotImplementedError, match="meta"),  # it has no values to copy
    ):
        compiled(torch.empty(3, device=GPU))


def test_what_is_planned_may_begin_on_the_cpu() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rand(3, device="cpu").to(x.device)

    program = nimble_fx.plan(Noisy(), torch.ones(3))
    assert [str(value.type) for value in program.graph.inputs] == ["f32[3]", "f32[3]"]
    with pytest.raises(UnsupportedError, match="second device"):
        nimble_fx.plan(lambda x: x.sin().to("cpu") + torch.ones(3, device="cpu"), torch.ones(3))
