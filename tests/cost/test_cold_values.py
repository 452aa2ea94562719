"""Which values are cold when they are read, and how many bytes are read in between."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nimble_fx.cost.cold_values import MAX_COLD_NBYTES, cold_values
from tests.support.cost_graphs import aten, one_task, tensor_type, traced


def test_parameters_and_their_views_are_cold_and_nothing_else() -> None:
    graph = traced(nn.Sequential(nn.Linear(300, 100), nn.ReLU()), torch.randn(4, 300))
    cold = cold_values(graph)
    static = {value.name for value in graph.inputs if value.static}
    views = {task.name for task in graph.tasks if not task.launches}
    assert static
    assert views
    assert set(cold) == static | views
    assert set(cold.values()) == {1 << 17}  # 30,100 numbers of 4 bytes, rounded up


def test_no_cache_is_larger_than_what_is_read_between_two_reads() -> None:
    huge = tensor_type(1 << 20, 1 << 10)
    cold = cold_values(one_task(aten.relu.default, huge, huge, static=0))
    assert cold == {"x0": MAX_COLD_NBYTES}


@given(st.integers(1, 2**40))
def test_the_bytes_between_two_reads_are_known_to_a_quarter(n: int) -> None:
    """So that models of nearly one size share times, and none is taken to miss a cache it fits."""
    (nbytes,) = cold_values(one_task(aten.relu.default, None, tensor_type(n), static=0)).values()
    total = min(4 * n, MAX_COLD_NBYTES)
    assert total <= nbytes <= total * 5 / 4
    assert bin(nbytes).count("1") <= 3 or nbytes == MAX_COLD_NBYTES
