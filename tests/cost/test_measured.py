"""Costs come from the table, else from similar tasks, else from the roofline, and say so."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nimble_fx.cost.measured import Measured
from nimble_fx.cost.roofline import Roofline
from nimble_fx.cost.time_table import MeasuredTime
from nimble_fx.cost.work import Work
from nimble_fx.devices.cpu import Cpu
from nimble_fx.devices.specs import DEVICES
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.errors import FileError, UnsupportedError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import ScalarType
from tests.support.cost_graphs import aten, one_task, tensor_type, traced
from tests.support.models import Branchy

CPU = DEVICES["cpu"]


class Counting(Cpu):
    """A device with graphs on which the nth call that is timed takes n microseconds."""

    has_graphs = True

    def __init__(self) -> None:
        self.n = 0

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        self.n += 1
        return 1e-6 * self.n


def product(n: int, dtype: torch.dtype = torch.float32) -> TaskGraph:
    x = tensor_type(n, n, dtype=dtype)
    return one_task(aten.mm.default, x, x, x)


def test_each_kind_of_task_is_timed_once_and_kept(tmp_path: Path) -> None:
    graph, device = traced(Branchy(), torch.randn(2, 4)), Counting()
    costs = Measured.of(graph, device, tmp_path)(graph)
    assert set(costs) == {task.name for task in graph.launching}
    assert {cost.origin for cost in costs.values()} == {"measured"}
    assert costs["mm"] == costs["mm_1"]
    assert device.n == len(graph.launching) - 1
    assert sorted({round(cost.us, 9) for cost in costs.values()}) == [*range(1, device.n + 1)]
    again = Measured.of(graph, device, tmp_path)
    assert again(graph) == costs
    assert device.n == len(graph.launching) - 1


def test_all_but_the_time_is_the_rooflines(tmp_path: Path) -> None:
    graph = product(300)
    (cost,), (guess,) = (
        each(graph).values() for each in (Measured.of(graph, Counting(), tmp_path), Roofline(CPU))
    )
    assert (cost.flops, cost.nbytes, cost.share) == (guess.flops, guess.nbytes, guess.share)
    assert cost.bandwidth == pytest.approx(min(1.0, guess.nbytes / (1e3 * cost.us * CPU.gbps)))


def table(*factors: tuple[int, float]) -> Measured:
    """Products of so many rows and columns that take so many times what the roofline says."""
    times = {}
    for n, factor in factors:
        flops, nbytes = 2.0 * n**3, 12.0 * n**2
        us = factor * Roofline(CPU)(product(n))["task"].us
        times[str(n)] = MeasuredTime(
            "aten.mm.default", us, Work(flops, nbytes, n * n, torch.float32, True, False)
        )
    return Measured(CPU, times)


def ratio(costs: Measured, graph: TaskGraph) -> float:
    return costs(graph)["task"].us / Roofline(CPU)(graph)["task"].us


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0.1, 10)), min_size=1, max_size=6))
def test_between_neighbours_it_is_between_what_they_are(factors: list[tuple[int, float]]) -> None:
    costs = table(*factors)
    found = dict(factors).values()
    assert min(found) * (1 - 1e-9) <= ratio(costs, product(100)) <= max(found) * (1 + 1e-9)
    assert costs(product(100))["task"].origin == "interpolated"


def test_a_near_neighbour_counts_for_more() -> None:
    assert 2 < ratio(table((99, 4.0), (10, 1.0)), product(100)) < 4
    assert 1 < ratio(table((99, 1.0), (10, 4.0)), product(100)) < 2
    assert ratio(table((50, 4.0), (200, 1.0)), product(100)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "graph",
    [
        product(100, torch.float64),
        one_task(aten.relu.default, tensor_type(100), tensor_type(100)),
    ],
)
def test_other_operators_and_types_are_no_neighbours(graph: TaskGraph) -> None:
    costs = table((100, 3.0))(graph)
    assert costs == Roofline(CPU)(graph)
    assert costs["task"].origin == "roofline"


class Failing(Cpu):
    """A device with graphs on which nothing can be timed."""

    has_graphs = True

    def __init__(self, error: Exception) -> None:
        self.error = error

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("it waits\nfor the device"), IndexError("range")])
def test_what_cannot_be_timed_is_the_rooflines_and_says_why(
    error: Exception, tmp_path: Path
) -> None:
    graph = product(10)
    costs = Measured.of(graph, Failing(error), tmp_path)
    assert costs(graph) == Roofline(CPU)(graph)
    (why,) = costs.failed.values()
    assert why == f"{type(error).__name__}: {error}".splitlines()[0]
    assert not list(tmp_path.glob("*.json"))


def test_the_callers_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    class Interrupted(Cpu):
        has_graphs = True

        def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Measured.of(product(3), Interrupted(), tmp_path)


class Awkward(nn.Module):
    """Writes in place, draws, looks up, sorts, and counts what is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.n: Tensor
        self.register_buffer("n", torch.zeros(8))

    def forward(self, rows: Tensor) -> Any:
        self.n.add_(1)
        x = self.table(rows) + self.n + torch.rand(8)
        return x.sort(dim=0).values[rows % 3].cumsum(0)


def test_whatever_a_model_does_is_measured_and_leaves_no_trace(tmp_path: Path) -> None:
    model, rows = Awkward(), torch.arange(6)
    graph = traced(model, rows)
    torch.manual_seed(5)
    expected, before = torch.rand(3), model.n.clone()
    torch.manual_seed(5)
    costs = Measured.of(graph, Cpu(), tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(model.n, before)
    assert costs.failed == {}
    assert all(0 < cost.us < inf for cost in costs(graph).values())
    assert {cost.origin for cost in costs(graph).values()} == {"measured"}


def test_symbolic_sizes_are_taken_for_what_is_said(tmp_path: Path) -> None:
    x = tensor_type("s0", 4)
    graph = one_task(aten.relu.default, x, x)
    costs = Measured.of(graph, Counting(), tmp_path, {"s0": 3})
    assert costs(graph)["task"].origin == "measured"
    assert replace(costs, sizes={"s0": 300})(graph)["task"].origin == "interpolated"
    with pytest.raises(UnsupportedError):
        Measured.of(graph, Counting(), tmp_path)


def test_a_program_of_any_size_is_measured_at_the_one_that_is_said(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        return torch.bmm(x, x.transpose(1, 2)).flatten(1).softmax(1)

    graph = traced(model, torch.randn(6, 3, 4), dynamic=True)
    symbols = {
        value.type.expression for value in graph.inputs if isinstance(value.type, ScalarType)
    }
    costs = Measured.of(graph, Cpu(), tmp_path, dict.fromkeys(symbols, 7))
    assert symbols
    assert costs.failed == {}
    assert {cost.origin for cost in costs(graph).values()} == {"measured"}


def test_on_a_device_that_has_no_time_the_roofline_is_asked_and_says_why(
    tmp_path: Path,
) -> None:
    graph = product(3)
    measured = Measured.of(graph, Virtual(), tmp_path)
    assert measured(graph) == Roofline(Virtual.specs)(graph)
    assert all("orders, not time" in reason for reason in measured.failed.values())
    assert measured.failed


def test_a_broken_table_is_an_error(tmp_path: Path) -> None:
    graph = product(3)
    Measured.of(graph, Counting(), tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    with pytest.raises(FileError, match="delete it"):
        Measured.of(graph, Counting(), tmp_path)
