"""The shortest schedule is the shortest; windows of a program lose no order."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.optimality import main, timelines
from bench.problems.cp_sat import shortest_schedule
from bench.problems.optimality_gap import (
    CRITICAL_PATH,
    DistanceRow,
    distance_cells,
    median_distance,
)
from bench.problems.scheduling_problems import Instance, random_instance, windows, without_sharing
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.critical_path import with_direct_waits
from nimble_fx.scheduling.launch_order import in_launch_order
from nimble_fx.simulation.schedule_model import predict
from tests.strategies import task_graphs
from tests.strategies.costs import cost, device

pytestmark = pytest.mark.slow


def problems(max_tasks: int) -> st.SearchStrategy[Instance]:
    return st.builds(random_instance, st.integers(0, 1000), st.integers(1, max_tasks))


def all_schedules(graph: TaskGraph, n_streams: int) -> Iterator[TaskGraph]:
    """Every assignment of streams in every launch order."""
    names = [task.name for task in graph.tasks]
    for order in nx.all_topological_sorts(graph.to_networkx()):
        ordered = in_launch_order(graph, order)
        for streams in product(range(n_streams), repeat=len(names)):
            on = dict(zip(names, streams, strict=True))
            yield with_direct_waits(ordered.with_streams(on))


@settings(max_examples=12)
@given(problems(max_tasks=5), st.sampled_from([0.0, 0.3, 5.0]))
def test_no_schedule_of_all_that_there_are_is_shorter(instance: Instance, event_us: float) -> None:
    costs, on = without_sharing(instance.costs), device(event_us, max_streams=2)
    start = timelines(instance.graph, costs, on)["serial"][0]
    optimum = shortest_schedule(start, costs, on, effort=10)
    best = min(
        predict(schedule, costs, on).makespan_us for schedule in all_schedules(instance.graph, 2)
    )
    assert optimum.proven
    assert optimum.us == pytest.approx(best)


@given(problems(max_tasks=12), st.integers(1, 4))
def test_no_policy_beats_the_optimum(instance: Instance, n_streams: int) -> None:
    costs, on = without_sharing(instance.costs), device(max_streams=n_streams)
    made = timelines(instance.graph, costs, on)
    optimum = shortest_schedule(made[CRITICAL_PATH][0], costs, on, effort=1)
    for _, timeline in made.values():
        assert timeline.makespan_us >= optimum.bound_us - 1e-6
    assert optimum.bound_us <= optimum.us <= made[CRITICAL_PATH][1].makespan_us + 1e-6


@given(task_graphs(), st.integers(1, 6), st.integers(1, 3))
def test_windows_keep_each_order_between_their_tasks(
    graph: TaskGraph, n_tasks: int, n_windows: int
) -> None:
    costs = {task.name: cost(1.0) for task in graph.launching}
    whole = nx.transitive_closure(graph.to_networkx())
    for window in windows("drawn", graph, costs, n_tasks, n_windows):
        names = {task.name for task in window.graph.launching}
        assert set(window.costs) == names
        assert len(names) == min(n_tasks, len(graph.launching))
        closure = nx.transitive_closure(window.graph.to_networkx())
        assert set(closure.edges) == set(whole.subgraph(names).edges)


def test_a_random_instance_is_its_seed_s() -> None:
    assert random_instance(3, 20) == random_instance(3, 20)
    assert random_instance(3, 20).costs != random_instance(4, 20).costs


def test_distances_are_to_the_bound_and_by_streams() -> None:
    def row(n_streams: int, us: float) -> DistanceRow:
        return DistanceRow(
            "x", 3, n_streams, 12.0, 10.0, {CRITICAL_PATH: us}, 20.0, {CRITICAL_PATH: 2 * us}
        )

    rows = [row(2, 11.0), row(2, 13.0), row(4, 12.0)]
    assert not rows[0].proven
    assert median_distance(rows, CRITICAL_PATH) == pytest.approx(0.2)
    _, body = distance_cells(rows)
    assert body[0] == ["2 streams, critical-path", "20.0%", "30.0%", "8.3%", "20.0%", "30.0%"]
    assert body[1] == ["4 streams, critical-path", "20.0%", "20.0%", "0.0%", "20.0%", "20.0%"]


def test_the_command_measures_and_keeps(tmp_path: Path) -> None:
    few = "--models dlrm --tasks 8 --windows 1 --random 1 --streams 2 --effort 0.2"
    assert main([*few.split(), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "cpu" / "optimality.json").exists()
