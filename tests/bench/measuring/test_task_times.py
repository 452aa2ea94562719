"""A task that cannot be timed, and a graph that cannot be scheduled, are errors."""

from typing import Any

import pytest
import torch

from bench.measuring import task_times
from bench.measuring.task_times import TimedTasks
from bench.problems.model_graphs import Traces
from nimble_fx.errors import FallbackError


def test_a_task_that_cannot_be_timed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_times(*_: Any) -> Any:
        return {}, {"aten.relu": "it fails on such values"}

    monkeypatch.setattr(task_times, "measured_times", measured_times)
    timed = TimedTasks()
    with (
        torch.no_grad(),
        pytest.raises(FallbackError, match=r"aten\.relu: it fails on such values"),
    ):
        torch.compile(torch.relu, backend=timed)(torch.ones(3))
    assert not timed.graphs


@pytest.mark.parametrize("backend", [TimedTasks(), Traces()], ids=lambda each: each.__name__)
def test_so_is_a_graph_that_cannot_be_scheduled(backend: TimedTasks | Traces) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with torch.no_grad(), pytest.raises(FallbackError, match="cond"):
        torch.compile(program, backend=backend)(torch.eye(3))
    assert not backend.graphs
