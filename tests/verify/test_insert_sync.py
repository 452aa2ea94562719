"""PyTorch's own insertion of waits has a bug, which our checks find and our pass does not have.

`insert_sync` (torch 2.13) makes a wait only where it makes the event: a producer's second consumer
on another stream gets none.
"""

from collections import defaultdict
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.verify import verify
from tests.support import oracle, sanitizer
from tests.support.schedules import aten_graph

STREAMS = {"relu": 0, "sigmoid": 1, "tanh": 2}
RACE = ("relu", "tanh")


def program(x: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.relu(x)
    return torch.sigmoid(made), torch.tanh(made)


def with_waits(waits: Mapping[str, tuple[str, ...]]) -> TaskGraph:
    """The program on three streams."""
    graph = trace(aten_graph(program, torch.randn(2)), "program").graph
    return graph.replace_tasks(
        task.updated(stream=STREAMS[task.name], waits=waits.get(task.name, ()))
        for task in graph.tasks
    )


def waits_that_torch_inserts() -> dict[str, tuple[str, ...]]:
    """Its pass for backward graphs, on the program with its streams written on it."""
    streams = pytest.importorskip("torch._functorch._aot_autograd.streams")
    if not hasattr(streams, "insert_backward_syncs"):
        pytest.skip("this torch inserts no waits")
    gm = aten_graph(program, torch.randn(2))
    for node in gm.graph.nodes:
        if node.name in STREAMS:
            node.meta["custom"] = {"stream": STREAMS[node.name]}
            node.meta["partitioner_tag"] = "is_backward"
            node.meta["val"] = torch.empty(2, device="meta")  # tensors on the CPU need no waits
    streams.insert_backward_syncs(gm)
    return _waits_written_in(gm)


def _waits_written_in(gm: GraphModule) -> dict[str, tuple[str, ...]]:
    """For each operator, the operators whose event its stream waits for right before it."""
    newest: dict[int, str] = {}
    recorded_after: dict[int, str] = {}
    waiting: defaultdict[int, list[str]] = defaultdict(list)
    waits = {}
    for node in gm.graph.nodes:
        if node.target is torch.ops.streams.record_event.default:
            event, stream = node.args
            recorded_after[event] = newest[stream]
        elif node.target is torch.ops.streams.wait_event.default:
            event, stream = node.args
            waiting[stream].append(recorded_after[event])
        elif node.name in STREAMS:
            stream = STREAMS[node.name]
            waits[node.name] = tuple(waiting.pop(stream, ()))
            newest[stream] = node.name
    return waits


BY_HAND = {"relu": (), "sigmoid": ("relu",), "tanh": ()}


def test_torch_gives_only_the_first_of_two_consumers_its_wait() -> None:
    waits = waits_that_torch_inserts()
    if waits["tanh"]:
        pytest.skip("this torch gives the second consumer its wait")
    assert waits == BY_HAND


@pytest.mark.parametrize("by_torch", [True, False])
def test_every_judge_names_the_second_consumer(by_torch: bool) -> None:
    waits = waits_that_torch_inserts() if by_torch else BY_HAND
    if waits["tanh"]:
        pytest.skip("this torch gives the second consumer its wait")
    graph = with_waits(waits)
    with pytest.raises(ScheduleError, match=r"race on storage relu: tanh .* reads .* relu"):
        verify(graph)
    assert oracle.races(graph) == {RACE}
    assert sanitizer.races(graph) == {RACE}


def test_our_pass_gives_both_consumers_their_wait() -> None:
    graph = InsertWaits()(with_waits({}))
    assert [task.waits for task in graph.tasks] == [(), ("relu",), ("relu",)]
    verify(graph)
    assert not oracle.races(graph)
    assert not sanitizer.races(graph)
