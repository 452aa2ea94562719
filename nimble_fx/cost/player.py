"""Runs a graph on made-up values, task by task, with a clock."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Any

from torch import Tensor

from nimble_fx.cost.arguments import filled
from nimble_fx.cost.cold import MAX_COLD_NBYTES
from nimble_fx.cost.synthetic import is_expanded, randomize, rows_elsewhere, synthetic
from nimble_fx.errors import UnsupportedError, one_line
from nimble_fx.ir.operators import called
from nimble_fx.ir.task_graph import Arg, Ref, Task, TaskGraph, Type
from nimble_fx.torch_internals.names import pytree

LEAST, GREATEST = 1e-6, 20.0
"""Results whose greatest number, by its size, is not between these are written over."""


class Player:
    """Runs a graph, each time from the same values.

    Attributes:
        failed: why tasks could not be called, by name.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.failed: dict[str, str] = {}
        self._steps = list(_steps(graph))
        self._given = dict(_given_values(graph))
        written = {storage for task in graph.tasks for storage in task.writes}
        self._as_they_were = {
            value.name: made.clone()
            for value in (*graph.inputs, *graph.constants)
            if written.intersection(value.holds)
            and isinstance(made := self._given[value.name], Tensor)
            and not is_expanded(made)
        }
        self._out_of_range: set[str] = set()

    def settle(self) -> None:
        """A run in which code is loaded, memory is got, and what goes out of range is noted."""
        for step, values in self._walk():
            self._step(step, values)
            if step.task.launches and _is_out_of_range(values[step.task.name]):
                self._out_of_range.add(step.task.name)
                _fill(values[step.task.name])
            _free(step, values)

    def run(self) -> dict[str, float]:
        """What each launching task takes, in seconds."""
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
        """Each step with the values there are before it."""
        for name, before in self._as_they_were.items():
            self._given[name].copy_(before)
        values = dict(self._given)
        for step in self._steps:
            yield step, values

    def _step(self, step: "_Step", values: dict[str, Any]) -> float:
        """Calls a task; the seconds of that."""
        task = step.task
        elsewhere = rows_elsewhere(task, values)
        there = {**values, **elsewhere} if elsewhere else values
        args, kwargs = filled(task.args, there), filled(step.kwargs, there)
        start = perf_counter()
        try:
            values[task.name] = step.target(*args, **kwargs)
            return perf_counter() - start
        except Exception as error:  # an operator may raise whatever it likes of made-up values
            self.failed[task.name] = one_line(error)
            values[task.name] = _made(task.type)
            return 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    """A task, what to call, and the values that nobody wants afterwards."""

    task: Task
    target: Callable[..., Any]
    kwargs: Mapping[str, Arg]
    dead: tuple[str, ...]


def _steps(graph: TaskGraph) -> Iterator[_Step]:
    """The tasks; each value dies with the last task that uses it, or with its own."""
    last = {name: task.name for task in graph.tasks for name in (task.name, *task.uses)}
    kept = {arg.name for arg in graph.outputs if isinstance(arg, Ref)}
    for task in graph.tasks:
        mine = dict.fromkeys((task.name, *task.uses))
        dead = tuple(name for name in mine if last[name] == task.name and name not in kept)
        yield _Step(task, called(task.target), dict(task.kwargs), dead)


def _given_values(graph: TaskGraph) -> Iterator[tuple[str, Any]]:
    """Values for inputs and constants.

    Of parameters that are alike no more are made than caches hold; these take turns.
    """
    alike: dict[Type | None, Iterator[Any]] = {}
    for value in graph.inputs:
        if value.static and value.type not in alike:
            alike[value.type] = _enough(value.type)
        yield value.name, next(alike[value.type]) if value.static else _made(value.type)
    for value in graph.constants:
        yield value.name, _made(value.type)


def _enough(value: Type | None) -> Iterator[Any]:
    """Values of a type without end: as many as caches hold, and these again."""
    made: list[Any] = []
    nbytes = 0
    while nbytes < MAX_COLD_NBYTES:
        made.append(_made(value))
        yield made[-1]
        nbytes += max(1, getattr(made[-1], "nbytes", 1))
    yield from cycle(made)


def _made(value: Type | None) -> Any:
    """A value of a type; None, at which operators raise, if nothing is known of it."""
    try:
        return synthetic(value)
    except (UnsupportedError, RuntimeError):
        return None


def _free(step: _Step, values: dict[str, Any]) -> None:
    for name in step.dead:
        del values[name]


def _is_out_of_range(result: Any) -> bool:
    """Whether numbers in it vanish, or are so large that an exponential of them does."""
    peaks = [leaf.abs().max().item() for leaf in _floating(result)]
    return any(peak != 0 and not LEAST <= peak <= GREATEST for peak in peaks)


def _fill(result: Any) -> None:
    for leaf in _floating(result):
        randomize(leaf)


def _floating(result: Any) -> list[Tensor]:
    """The tensors of floating-point numbers in it that can be judged and written."""
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return [
        leaf
        for leaf in leaves
        if leaf.is_floating_point() and leaf.itemsize > 1 and leaf.numel() and not is_expanded(leaf)
    ]
