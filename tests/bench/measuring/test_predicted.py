"""Predictions add up, respect their bound, and give the reason that follows from the costs."""

import pytest
import torch
from hypothesis import given
from torch import nn

from bench.measuring.predicted import There, predicted_for, reason
from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES
from nimble_fx.ir.task_graph import TaskGraph
from tests.strategies import task_graphs
from tests.support.cost_graphs import traced
from tests.support.models import Branchy


def test_a_gain_is_the_best_ones() -> None:
    times = {"serial": 6.0, "nimble": 4.0, "nimble, 2 streams": 3.0, "auto": 3.0}
    there = There("x", times, 2.0, "why")
    assert (there.best, there.gain) == ("nimble, 2 streams", 2.0)


@given(task_graphs())
def test_one_stream_takes_the_sum_and_none_goes_below_the_bound(graph: TaskGraph) -> None:
    device = DEVICES["a100"]
    there = predicted_for(device, [graph, graph])
    total = sum(cost.us for cost in Roofline(device)(graph).values())
    assert there.schedules["serial"] == pytest.approx(2 * total)
    assert min(there.schedules.values()) >= there.bound * (1 - 1e-9)
    assert there.schedules["auto"] <= there.schedules["serial"]
    assert {"auto", "serial"} <= set(there.schedules)


@pytest.mark.parametrize(
    ("share", "bandwidth", "says"),
    [
        (1.0, 0.0, "100% of its processors"),
        (0.0, 0.95, "95% of its memory"),
        (0.1, 0.0, "up to 2 at once; limited by the path to 1.7 times"),
        (0.7, 0.2, "limited by the processors to 1.4 times"),
    ],
)
def test_the_reason_is_what_limits_most(share: float, bandwidth: float, says: str) -> None:
    graph = traced(Branchy(), torch.randn(2, 4))
    cost = Cost(1.0, 1.0, 1.0, share, bandwidth)
    assert says in reason([graph], [{task.name: cost for task in graph.launching}])


def test_a_chain_is_called_one_and_nothing_is_said_of_nothing() -> None:
    graph = traced(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.randn(3))
    assert "100% of the tasks' time" in reason([graph], [Roofline(DEVICES["h100"])(graph)])
    assert reason([], []) == "nothing runs"
