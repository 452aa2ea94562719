"""How long tasks take on a CPU: each where the program calls it, after the tasks before it.

Over and over by itself a task is quicker than there, where its code and its parameters have left
the caches since they were last used, and its result may be in memory that the system has yet to
give out. For the models of the zoo a sum of such times was up to 0.76 of the program's own time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

from nimble_fx.cost.cold import MAX_COLD_NBYTES
from nimble_fx.cost.synthetic import look_elsewhere, synthetic
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir import Arg, Ref, Task, TaskGraph, Type
from nimble_fx.targets import called

MIN_RUNS, MAX_RUNS = 5, 50
ENOUGH_SECONDS = 0.25
"""How often the program runs: within these bounds, for about so long."""


@dataclass(frozen=True)
class InProgram:
    """What tasks were seen to take.

    Attributes:
        seconds: by launching task: the median over runs; views since the last one, and what is
            freed then, are counted in.
        failed: why others have none: what their operators raised.
    """

    seconds: Mapping[str, float]
    failed: Mapping[str, str]


def measured_in_program(graph: TaskGraph, types: Mapping[str, Type | None]) -> InProgram:
    """Runs a graph on made-up values a few times, and times each task.

    An operator that raises with such values is left out: later tasks get made-up results of it.

    Cost: up to 51 runs of the program in a quarter of a second, or 6 that take longer.

    Args:
        graph: on the CPU, traced or scheduled, without symbolic sizes.
        types: of all its values, by name.
    """
    player = _Player(graph, types)
    start = perf_counter()
    player.run()  # code is loaded, memory is got
    n = max(MIN_RUNS, min(MAX_RUNS, int(ENOUGH_SECONDS / (perf_counter() - start))))
    runs = [player.run() for _ in range(n)]
    timed = [name for name in runs[0] if name not in player.failed]
    return InProgram({name: median(run[name] for run in runs) for name in timed}, player.failed)


@dataclass(frozen=True, slots=True)
class _Step:
    """A task, what to call, and the values that nobody wants afterwards."""

    task: Task
    target: Callable[..., Any]
    kwargs: Mapping[str, Arg]
    dead: tuple[str, ...]


class _Player:
    """Runs a graph, task by task.

    Attributes:
        failed: why tasks could not be called, by name.
    """

    def __init__(self, graph: TaskGraph, types: Mapping[str, Type | None]) -> None:
        self.failed: dict[str, str] = {}
        self._types = types
        self._steps = list(_steps(graph))
        self._given = dict(_given_values(graph))

    def run(self) -> dict[str, float]:
        """What each launching task takes, in seconds."""
        values = dict(self._given)
        seconds: dict[str, float] = {}
        since = 0.0
        for step in self._steps:
            since += self._step(step, values)
            if step.task.launches:
                seconds[step.task.name], since = since, 0.0
        return seconds

    def _step(self, step: _Step, values: dict[str, Any]) -> float:
        """Calls a task, frees what is dead; the seconds of both."""
        task = step.task
        look_elsewhere(task, values)
        args, kwargs = _argument(task.args, values), _argument(step.kwargs, values)
        try:
            start = perf_counter()
            values[task.name] = step.target(*args, **kwargs)
            seconds = perf_counter() - start
        except Exception as error:  # an operator may raise whatever it likes of made-up values
            self.failed[task.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            values[task.name] = _made(self._types[task.name])
            seconds = 0.0
        del args, kwargs
        start = perf_counter()
        for name in step.dead:
            del values[name]
        return seconds + perf_counter() - start


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
    except UnsupportedError:
        return None


def _argument(arg: Arg, values: Mapping[str, Any]) -> Any:
    kind = type(arg)
    if kind is Ref:
        return values[arg.name]
    if kind is list or kind is tuple:
        return kind([_argument(item, values) for item in arg])
    if kind is dict:
        return {name: _argument(item, values) for name, item in arg.items()}
    if kind is slice:
        return slice(*(_argument(each, values) for each in (arg.start, arg.stop, arg.step)))
    return arg
