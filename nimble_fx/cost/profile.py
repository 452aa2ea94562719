"""What tasks took in a recorded run of their program, read from a trace."""

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median

import torch

from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import roofline
from nimble_fx.cost.work import value_types, work_of
from nimble_fx.errors import FileError
from nimble_fx.hardware import Device
from nimble_fx.ir import Task, TaskGraph, Type
from nimble_fx.sizes import Sizes, concrete
from nimble_fx.traces.events import Event, read_events
from nimble_fx.traces.host import outermost


@dataclass(frozen=True)
class Profile:
    """What tasks took when their program ran, not frozen, under torch.profiler.

    A task is what the trace has where the program calls it: the outermost operators of the trace
    are the program's calls in launch order, once or several times over. Its time is that of the
    kernels, copies and memsets which that call launched; in a trace without any, of the operator
    itself. Of several runs it is the median.

    Attributes:
        path: the trace, of calls of this program and of nothing else.
        device: what it was recorded on; says what part of it a task keeps busy.
        sizes: what symbolic sizes are taken for.
    """

    path: str | os.PathLike[str]
    device: Device
    sizes: Sizes = field(default_factory=dict)

    def __call__(self, graph: TaskGraph) -> Mapping[str, Cost]:
        """The cost of each launching task, by its name.

        Raises:
            FileError: the trace cannot be read, or is not of this program; the message says from
                which call on.
            UnsupportedError: a size depends on a symbol that `sizes` does not have.
        """
        graph = concrete(graph, self.sizes)
        events = read_events(self.path)
        called = [t for t in graph.tasks if isinstance(t.target, torch._ops.OpOverload)]
        operators = outermost(events)
        _check_calls(operators, called, self.path)
        times = _times(events, operators)
        types = value_types(graph)
        return {
            task.name: self._cost(task, types, median(times[i :: len(called)]))
            for i, task in enumerate(called)
            if task.launches
        }

    def _cost(self, task: Task, types: Mapping[str, Type | None], us: float) -> Cost:
        work = work_of(task, types)
        bandwidth = min(1.0, work.nbytes / (1e3 * us * self.device.gbps)) if us else 0.0
        cost = roofline(work, self.device)
        return replace(cost, us=us, bandwidth=bandwidth, origin="profile")


def _check_calls(
    operators: Sequence[Event], called: Sequence[Task], path: str | os.PathLike[str]
) -> None:
    """Refuses a trace that is not of these calls, over and over."""
    n_runs = max(1, -(-len(operators) // max(1, len(called))))
    for i, (event, task) in enumerate(zip_longest(operators, list(called) * n_runs)):
        found, wanted = (event.name if event else "nothing"), (_name(task) if task else "nothing")
        if found != wanted:
            raise FileError(
                f"{path}: not a run of this program: its call {i} is {found}, where the program "
                f"has {wanted}{f' ({task.name})' if task else ''}; record calls of the program "
                "alone, not frozen"
            )


def _name(task: Task) -> str:
    """What the profiler calls a task's operator."""
    return str(task.target._schema.name)  # type: ignore[attr-defined]  # an OpOverload


def _times(events: Iterable[Event], operators: Sequence[Event]) -> list[float]:
    """What each operator took on the device; on the host, if the trace has no device."""
    on_device: dict[int | None, float] = defaultdict(float)
    calls = []
    for event in events:
        if event.kind == "device":
            on_device[event.correlation] += event.us
        elif event.kind == "call":
            calls.append(event)
    if not on_device:
        return [operator.us for operator in operators]
    begins = [operator.start_us for operator in operators]
    times = [0.0] * len(operators)
    for call in calls:
        i = bisect_right(begins, call.start_us) - 1
        if i >= 0 and call.correlation is not None and call.start_us <= operators[i].end_us:
            times[i] += on_device.get(call.correlation, 0.0)
    return times
