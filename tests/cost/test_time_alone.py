"""Tasks are called on values of their types, with copies that are as cold as in the program."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from nimble_fx.cost.cold_values import cold_values
from nimble_fx.cost.synthetic import synthetic
from nimble_fx.cost.time_alone import MAX_COPIES, WARM_NBYTES, task_seconds
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import UnsupportedError
from tests.support import schedules
from tests.support.cost_graphs import aten, one_task, tensor_type, traced
from tests.support.opaque_memory import lstm_backward


class Noting(Cpu):
    """A device that notes what it is given to time."""

    def __init__(self) -> None:
        self.calls: Sequence[Any] = ()
        self.results: list[Any] = []

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        self.calls, self.results = calls, [call() for call in calls]
        return 1.0


def test_each_timed_call_of_an_embedding_looks_up_other_rows() -> None:
    """The same rows again would be warm, whatever the table."""
    graph = traced(nn.Embedding(1 << 20, 1), torch.arange(50))
    (task,) = graph.launching
    types, device = graph.types, Noting()
    values = {name: synthetic(types[name]) for name in task.uses}
    task_seconds(task, values, cold_values(graph), device)
    rows = [set(indices.tolist()) for _, indices, *_ in (call.args for call in device.calls)]
    assert len(rows) == MAX_COPIES
    assert min(map(len, rows)) > 40
    assert max(len(one & other) for one, other in pairwise(rows)) <= 2


@pytest.mark.parametrize(
    ("nbytes", "cold", "n_copies"),
    [
        (WARM_NBYTES // 4, None, 4),
        (WARM_NBYTES * 4, None, 1),
        (4, None, MAX_COPIES),
        (WARM_NBYTES, 8 * WARM_NBYTES, 8),
        (WARM_NBYTES, WARM_NBYTES // 2, 1),
    ],
)
def test_calls_go_round_as_many_copies_as_caches_hold(
    nbytes: int, cold: int | None, n_copies: int
) -> None:
    graph, device = one_task(aten.alias.default, None, tensor_type(1)), Noting()
    values = {"x0": torch.zeros(nbytes, dtype=torch.uint8)}
    seconds = task_seconds(graph.tasks[0], values, {} if cold is None else {"x0": cold}, device)
    assert seconds == 1.0
    assert len({x.data_ptr() for x in device.results}) == len(device.results) == n_copies


def test_a_small_argument_does_not_make_copies_of_a_large_parameter() -> None:
    """64 copies of a weight would be colder than it is in the model, and take as much memory."""
    graph, device = one_task(aten.add.Tensor, None, tensor_type(1), tensor_type(1)), Noting()
    values = {"x0": torch.zeros(1000), "x1": torch.zeros(1)}
    task_seconds(graph.tasks[0], values, {"x0": 12_000}, device)
    called = [call.args for call in device.calls]
    assert len(called) == 66  # whole rounds of the three
    assert len({weight.data_ptr() for weight, _ in called}) == 3
    assert len({x.data_ptr() for _, x in called}) == MAX_COPIES


def test_what_a_task_writes_is_no_value_of_the_callers() -> None:
    graph, device = one_task(aten.add_.Tensor, None, tensor_type(3), tensor_type(3)), Noting()
    values = {"x0": torch.ones(3), "x1": torch.ones(3)}
    task_seconds(graph.tasks[0], values, {}, device)
    assert device.results
    assert torch.equal(values["x0"], torch.ones(3))


def test_what_is_written_over_and_over_does_not_become_ever_smaller() -> None:
    graph, device = one_task(aten.mul_.Tensor, None, tensor_type(3), tensor_type(3)), Noting()
    task_seconds(graph.tasks[0], {"x0": torch.ones(3), "x1": torch.full((3,), 0.5)}, {}, device)
    assert not torch.stack(device.results).any()


def test_what_an_operator_raises_is_raised() -> None:
    graph = one_task(aten.mm.default, None, tensor_type(3, 4), tensor_type(3, 4))
    values = {"x0": torch.ones(3, 4), "x1": torch.ones(3, 4)}
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        task_seconds(graph.tasks[0], values, {}, Noting())


def test_what_would_crash_is_not_run() -> None:
    graph = schedules.traced(lstm_backward, torch.randn(5, 2, 4)).graph
    (task,) = [task for task in graph.tasks if "mkldnn" in task.name]
    with pytest.raises(UnsupportedError, match="reads memory in a library's own format"):
        task_seconds(task, {}, {}, Noting())
