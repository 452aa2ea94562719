"""Runs a graph on synthetic values, task by task, and times each task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Any

from torch import Tensor

from nimble_fx.cost.arguments import with_values
from nimble_fx.cost.cold_values import MAX_COLD_NBYTES
from nimble_fx.cost.synthetic import check_runs, is_expanded, random_rows, randomize, synthetic
from nimble_fx.errors import UnsupportedError, one_line
from nimble_fx.ir.operators import runtime_function
from nimble_fx.ir.task_graph import Arg, Ref, Task, TaskGraph
from nimble_fx.ir.types import Type
from nimble_fx.torch_internals.leaves import tensors_in

LEAST, GREATEST = 1e-6, 20.0
"""Results whose largest absolute value is not between these are overwritten."""


class TimingInterpreter:
    """Runs a graph, each time from the same values.

    Attributes:
        failed: why tasks could not be called, by name.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.failed: dict[str, str] = {}
        self._steps = list(_steps(graph))
        self._inputs = dict(_input_values(graph))
        written = {storage for task in graph.tasks for storage in task.writes}
        self._originals = {
            value.name: tensor.clone()
            for value in (*graph.inputs, *graph.constants)
            if written.intersection(value.holds)
            and isinstance(tensor := self._inputs[value.name], Tensor)
            and not is_expanded(tensor)
        }
        self._out_of_range: set[str] = set()

    def warm_up(self) -> None:
        """Runs the graph once: loads code, allocates memory, finds results that go out of range."""
        for step, values in self._walk():
            self._step(step, values)
            if step.task.launches and _is_out_of_range(values[step.task.name]):
                self._out_of_range.add(step.task.name)
                _fill(values[step.task.name])
            _free(step, values)

    def run(self) -> dict[str, float]:
        """The seconds of each launching task in one run."""
        seconds: dict[str, float] = {}
        since = 0.0
        for step, values in self._walk():
            since += self._step(step, values)
            if step.task.name in self._out_of_range:
                _fill(values[step.task.name])
            start = perf_counter()
            _free(step, values)
            since += perf_counter() - start
            if step.task.launches:
                seconds[step.task.name], since = since, 0.0
        return seconds

    def _walk(self) -> Iterator[tuple["_Step", dict[str, Any]]]:
        """Each step with the live values before it."""
        for name, original in self._originals.items():
            self._inputs[name].copy_(original)
        values = dict(self._inputs)
        for step in self._steps:
            yield step, values

    def _step(self, step: "_Step", values: dict[str, Any]) -> float:
        """Calls a task; returns the seconds that it took."""
        task = step.task
        rows = random_rows(task, values)
        operands = {**values, **rows} if rows else values
        args, kwargs = with_values(task.args, operands), with_values(step.kwargs, operands)
        try:
            check_runs(task, tensors_in((args, kwargs)))
            start = perf_counter()
            values[task.name] = step.target(*args, **kwargs)
            return perf_counter() - start
        except Exception as error:  # an operator may raise any error on synthetic values
            self.failed[task.name] = one_line(error)
            values[task.name] = _synthetic_or_none(task.type)
            return 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    """A task, its function, and the values whose last use it is."""

    task: Task
    target: Callable[..., Any]
    kwargs: Mapping[str, Arg]
    dead: tuple[str, ...]


def _steps(graph: TaskGraph) -> Iterator[_Step]:
    """The tasks in order; each value dies after its last use, or its definition if it has none."""
    last = {name: task.name for task in graph.tasks for name in (task.name, *task.uses)}
    returned = {arg.name for arg in graph.outputs if isinstance(arg, Ref)}
    for task in graph.tasks:
        mine = dict.fromkeys((task.name, *task.uses))
        dead = tuple(name for name in mine if last[name] == task.name and name not in returned)
        yield _Step(task, runtime_function(task.target), dict(task.kwargs), dead)


def _input_values(graph: TaskGraph) -> Iterator[tuple[str, Any]]:
    """Values for inputs and constants.

    Parameters of one type share as many values as exceed the caches, to save memory.
    """
    by_type: dict[Type | None, Iterator[Any]] = {}
    for value in graph.inputs:
        if not value.static:
            yield value.name, _synthetic_or_none(value.type)
            continue
        if value.type not in by_type:
            by_type[value.type] = _cycled(value.type)
        yield value.name, next(by_type[value.type])
    for value in graph.constants:
        yield value.name, _synthetic_or_none(value.type)


def _cycled(value: Type | None) -> Iterator[Any]:
    """An endless cycle of values of a type, which together exceed the caches."""
    values: list[Any] = []
    nbytes = 0
    while nbytes < MAX_COLD_NBYTES:
        values.append(_synthetic_or_none(value))
        yield values[-1]
        nbytes += max(1, getattr(values[-1], "nbytes", 1))
    yield from cycle(values)


def _synthetic_or_none(value: Type | None) -> Any:
    """A value of a type; None, on which operators raise, if the type is not supported."""
    try:
        return synthetic(value)
    except (UnsupportedError, RuntimeError):
        return None


def _free(step: _Step, values: dict[str, Any]) -> None:
    for name in step.dead:
        del values[name]


def _is_out_of_range(result: Any) -> bool:
    """Whether its numbers vanish, or are so large that their exponentials overflow."""
    peaks = [leaf.abs().max().item() for leaf in _floating(result)]
    return any(peak != 0 and not LEAST <= peak <= GREATEST for peak in peaks)


def _fill(result: Any) -> None:
    for leaf in _floating(result):
        randomize(leaf)


def _floating(result: Any) -> list[Tensor]:
    """The floating-point tensors in a result that `abs` and `randomize` support."""
    return [
        leaf
        for leaf in tensors_in(result)
        if leaf.is_floating_point() and leaf.itemsize > 1 and leaf.numel() and not is_expanded(leaf)
    ]
