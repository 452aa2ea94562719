"""A rival's schedule is legal for any graph, and has the properties that its authors describe."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.policies import RIVALS
from bench.policies.depth_round_robin import DepthRoundRobin
from bench.policies.opara import Opara
from bench.policies.static_weights import StaticWeights
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.pipeline import passes_for, schedule
from nimble_fx.verify import verify
from tests.strategies import task_graphs
from tests.support.schedules import scheduled, traced


@given(task_graphs(), st.sampled_from(sorted(RIVALS)))
def test_every_policy_makes_a_legal_schedule_of_any_graph(graph: TaskGraph, name: str) -> None:
    made = schedule(graph, passes_for(RIVALS[name], 32))
    verify(made, graph)
    used = {task.stream for task in made.launching}
    assert used == set(range(made.n_streams))


@given(task_graphs(), st.integers(2, 4))
def test_none_has_more_streams_than_it_may(graph: TaskGraph, limit: int) -> None:
    for policy in (Opara(limit), DepthRoundRobin(limit), StaticWeights(limit)):
        assert scheduled(graph, policy).n_streams <= limit


def two_products(x: Tensor) -> Tensor:
    a = (x.exp() @ x).sigmoid()
    b = (x.sin() @ x).cos()
    return a + b


def streams(graph: TaskGraph) -> dict[str, int | None]:
    return {task.name: task.stream for task in graph.launching}


X = torch.randn(4, 4)


def test_opara_goes_on_with_the_first_successor_and_opens_a_stream_for_the_next() -> None:
    def fork(x: Tensor) -> Tensor:
        a = x.exp()
        return a.sin() + a.cos()

    made = scheduled(traced(fork, X).graph, Opara())
    assert streams(made) == {"exp": 0, "sin": 0, "cos": 1, "add": 0}


def test_opara_launches_products_and_other_kernels_in_turn() -> None:
    made = scheduled(traced(two_products, X).graph, Opara())
    order = [task.name for task in made.launching]
    assert order == ["exp", "mm", "sigmoid", "sin", "mm_1", "cos", "add"]


def test_opara_launches_the_smallest_of_what_is_ready_first() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), x[0].sin()

    made = scheduled(traced(program, X).graph, Opara())
    assert [task.name for task in made.launching] == ["sin", "exp"]


def test_depth_round_robin_has_a_longest_path_on_stream_0_and_the_rest_in_turn() -> None:
    def program(x: Tensor) -> Tensor:
        deep = x.exp().sin().cos()
        return deep + x.tan() + x.tanh() + x.sigmoid()

    made = scheduled(traced(program, X).graph, DepthRoundRobin(3))
    expected = {"exp": 0, "sin": 0, "cos": 0, "tan": 1, "add": 0, "tanh": 2, "add_1": 0}
    assert streams(made) == {**expected, "sigmoid": 1, "add_2": 0}


def test_static_weights_takes_the_heaviest_path_first_and_three_streams_at_most() -> None:
    def program(x: Tensor) -> Tensor:
        light = x.exp()
        heavy = x.sin() @ x
        return light + heavy + x.cos() + x.tan() + x.tanh()

    made = scheduled(traced(program, X).graph, StaticWeights())
    order = [task.name for task in made.launching]
    assert order[:2] == ["sin", "exp"]  # 14 and 4 still to come
    assert [made.by_name[name].stream for name in order[:2]] == [0, 1]
    assert made.n_streams == 3
