"""The peak memory of common subexpression elimination, measured as a graph runs."""

import weakref
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nimble_fx.rewrites.eliminate_common_subexpressions import eliminate_common_subexpressions
from nimble_fx.rewrites.live_memory import MAX_GROWTH, LiveMemory
from nimble_fx.torch_internals.graph_modules import copied
from tests.support.schedules import aten_graph


class Meter(TorchDispatchMode):
    """Counts the bytes of the storages that operators return, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def note(self, value: Any) -> None:
        """Counts the storages of tensors that are not known yet."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._known:
                storage = tensor.untyped_storage()
                self._known.add(storage._cdata)
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.alive)

    def _free(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.alive -= nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result


def measured_peak(gm: GraphModule, *inputs: Tensor) -> int:
    """The most that is alive as the graph runs; values go after their last use."""
    meter = Meter()
    meter.note(inputs)
    with meter:
        Interpreter(gm).run(*inputs)
    return meter.peak


def test_what_a_value_is_read_for_after_its_twins_readers_counts_once() -> None:
    """At the product three tensors are alive, whichever `relu` is kept for the third one."""

    def program(x: Tensor) -> Tensor:
        first, second = x.relu(), x.relu()
        partial = second.sum() + (first * 2).sum()
        return partial + x.relu().sum()

    gm = eliminate_common_subexpressions(aten_graph(program, torch.randn(1000)))
    relu = torch.ops.aten.relu.default
    assert len(gm.graph.find_nodes(op="call_function", target=relu)) == 1


STEPS = st.lists(st.tuples(st.sampled_from("rspdhv"), st.integers(0, 5)), max_size=14)


def program_of(steps: Any) -> Any:
    """Activations, sums, doublings, halves and views of recent values; each step twice or more."""
    operators: dict[str, Any] = {
        "r": torch.relu,
        "s": torch.sigmoid,
        "p": lambda v: v + v,
        "d": lambda v: torch.cat([v, v]) if v.numel() < 4096 else v.neg(),
        "h": lambda v: v[: max(v.numel() // 2, 1)],
        "v": lambda v: v.view(-1, 1).sum(1),
    }

    def program(x: Tensor) -> Tensor:
        values, sums = [x], [x.sum()]
        for operator, back in steps:
            values.append(operators[operator](values[-1 - back % len(values)]))
            sums.append(values[-1].sum())
            values = values[-4:]
        return torch.stack(sums).sum()

    return program


@given(STEPS)
def test_the_peak_is_hardly_higher_after_it(steps: Any) -> None:
    gm = aten_graph(program_of([*steps, *steps]), torch.randn(64))
    before = measured_peak(copied(gm), torch.randn(64))
    after = measured_peak(eliminate_common_subexpressions(gm), torch.randn(64))
    assert after <= (1 + MAX_GROWTH) * before


@given(STEPS)
def test_what_is_alive_is_what_a_run_of_the_graph_holds(steps: Any) -> None:
    gm = aten_graph(program_of(steps), torch.randn(64))
    assert LiveMemory(gm.graph).peak == measured_peak(gm, torch.randn(64))


X, LARGE = torch.randn(100), torch.randn(1000)


def test_what_is_kept_adds_up() -> None:
    def program(x: Tensor, large: Tensor) -> Tensor:
        total = (large[:250] + 1).sum()
        for reduced in (torch.sum, torch.amax):
            for k in range(8):
                total = total + reduced(x + k)
        return total

    gm = aten_graph(program, X, LARGE)
    before, n = measured_peak(copied(gm), X, LARGE), len(gm.graph.nodes)
    after = measured_peak(eliminate_common_subexpressions(gm), X, LARGE)
    assert after <= (1 + MAX_GROWTH) * before
    assert len(gm.graph.nodes) < n


def test_what_is_kept_longer_again_is_counted_once() -> None:
    def program(x: Tensor, large: Tensor) -> Tensor:
        total = large.sum()
        for k in range(3):
            total = total + x.sigmoid().amax() + k
        return total

    gm = eliminate_common_subexpressions(aten_graph(program, X.repeat(2), LARGE))
    sigmoids = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sigmoid.default)
    assert len(sigmoids) == 1


def test_what_is_not_kept_may_be_shared_from_its_next_use_on() -> None:
    def program(x: Tensor) -> Tensor:
        first = x.sigmoid().amax()
        between = torch.cat([x, x]).neg().amax()
        return first + between + x.sigmoid().amin() + x.sigmoid().sum()

    gm = eliminate_common_subexpressions(aten_graph(program, LARGE))
    sigmoids = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sigmoid.default)
    assert len(sigmoids) == 2


def test_the_least_peak_is_that_of_the_program_that_works_in_place() -> None:
    def functional(x: Tensor) -> Tensor:
        return x.sin().cos().relu().sum()

    def in_place(x: Tensor) -> Tensor:
        return x.sin().cos_().relu_().sum()

    memory = LiveMemory(aten_graph(functional, LARGE).graph)
    assert memory.peak == measured_peak(aten_graph(functional, LARGE), LARGE)
    # the sum's result lies beside its operand for a moment
    in_place_peak = measured_peak(aten_graph(in_place, LARGE, functional=False), LARGE)
    assert memory.least_peak == in_place_peak - LARGE.itemsize
