"""The one definition of a legal schedule. It shares no code with the passes that make schedules.

A schedule is legal when every order that the program means (RAW, WAR and WAW on storages) happens
before by stream order and events, every value is made before it is used and dropped after, memory
is given back only when the stream that gets it next comes after its last access, and random draws
and side effects are launched in program order.

A schedule is proved twice: as the task graph that the passes made, and as the text that runs.
"""

from collections.abc import Collection, Mapping, Sequence

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.equivalence import check_same_program, check_same_schedule
from nimble_fx.verify.happens_before import (
    HappensBefore,
    check_forks,
    check_hazards,
    check_host_order,
    check_joins,
    check_placement,
)
from nimble_fx.verify.lifetimes import check_frees
from nimble_fx.verify.parse import parse
from nimble_fx.verify.reinplacing import check_contents

Uses = Sequence[Sequence[str]]
"""For each task, the values that it uses; collected once for all checks."""


def verify(graph: TaskGraph, traced: TaskGraph | None = None) -> None:
    """Proves a schedule free of races, or says what races with what.

    What is proved holds within one call, given what each task says that it reads and writes.
    Cost: O(tasks + waits x streams + accesses).

    Args:
        graph: the schedule.
        traced: the program that it schedules; the same tasks must do the same.

    Raises:
        ScheduleError: it names the two tasks, their streams, the storage and the user's lines, and
            shows the launch order around them.
    """
    if traced is not None:
        check_same_program(graph, traced)
    uses = [task.uses for task in graph.tasks]
    _check_structure(graph, uses)
    _check_accesses(graph, uses)
    _prove(graph, uses, graph.forks, graph.joins)


def verify_source(text: str, graph: TaskGraph | None = None) -> None:
    """Proves an emitted module free of races from its text alone; `text` may be edited by hand.

    The statements of `call` are read back, line by line, and proved as a schedule is. What each
    operator reads, writes and allocates is taken from its schema, and the order of the lines is
    the program's. What cannot be read cannot be proved: statements that no emitted module has are
    refused.

    Two things a text does not tell, and `graph` does: in which order the program draws random
    numbers, and whether an operator that may return a view or a copy (`reshape`, `contiguous`,
    `to`) makes a copy. Without it such an operator is taken to do both, so that a legal text may be
    refused.

    Args:
        text: the module.
        graph: the schedule that it should be; then operators, arguments, streams, waits, forks,
            joins, frees and outputs must be the graph's too.

    Raises:
        ScheduleError: it names the lines of the text that race, or the line that differs.
        TypeError: it is no text, or no graph; those of a program are its `source` and `graph`.
    """
    if not isinstance(text, str):
        raise TypeError(f"verify_source takes the text of a module, not a {type(text).__name__}")
    if not isinstance(graph, TaskGraph | None):
        raise TypeError(f"verify_source takes a program's graph, not a {type(graph).__name__}")
    parsed = parse(text, graph)
    uses = [task.uses for task in parsed.graph.tasks]
    _check_structure(parsed.graph, uses)
    _prove(parsed.graph, uses, parsed.forks, parsed.joins)
    if parsed.idle_waits:
        raise ScheduleError(
            f"{', '.join(parsed.idle_waits)}: the last wait is followed by no task, and no stream "
            "waits for it"
        )
    if graph is not None:
        check_same_schedule(parsed, graph)


def verify_contents(graph: TaskGraph, traced: TaskGraph) -> None:
    """Proves that operators in place leave everyone what they read before. Cost: O(accesses).

    Args:
        graph: a traced program, some of whose operators write over an operand now; not scheduled.
        traced: as it was.

    Raises:
        ScheduleError: a task reads what another wrote over, or does something else than before.
    """
    check_contents(graph, traced)


def verify_structure(graph: TaskGraph) -> None:
    """Checks what holds of every graph, scheduled or not: names, and values made before use.

    Raises:
        ScheduleError: a name comes twice, or a task uses or comes after what is not there yet.
    """
    _check_structure(graph, [task.uses for task in graph.tasks])


def _prove(graph: TaskGraph, uses: Uses, forks: Collection[str], joins: Collection[str]) -> None:
    """All that makes a schedule legal; races first, because they say most.

    Args:
        graph: the schedule.
        uses: what its tasks use.
        forks: the tasks that wait for the start of stream 0.
        joins: the tasks that stream 0 waits for at the end.
    """
    check_placement(graph)
    happened = HappensBefore(graph)
    check_hazards(graph, happened)
    check_host_order(graph)
    check_frees(graph, uses, happened)
    check_forks(graph, frozenset(forks))
    check_joins(graph, frozenset(joins), happened)


def _check_structure(graph: TaskGraph, uses: Uses) -> None:
    known = [value.name for value in (*graph.inputs, *graph.constants)]
    defined = set(known)
    for task, used in zip(graph.tasks, uses, strict=True):
        if task.name in defined:
            raise ScheduleError(f"two values are named {task.name}")
        if not (defined.issuperset(used) and defined.issuperset(task.after)):
            name = next(name for name in (*used, *task.after) if name not in defined)
            message = f"{describe_task(task)} needs {name}, which is not made before it"
            raise illegal(graph, message, task, graph.by_name.get(name))
        defined.add(task.name)
    for name in ref_names(graph.outputs):
        if name not in defined:
            raise ScheduleError(f"{graph.name} returns {name}, which no task makes")
    if len(set(known)) != len(known):
        raise ScheduleError(f"{graph.name} has two inputs of one name: {known}")


def _check_accesses(graph: TaskGraph, uses: Uses) -> None:
    """A task that launches says of the memory of each value that it uses that it accesses it."""
    if len({task.index for task in graph.tasks}) != len(graph.tasks):
        raise ScheduleError(f"tasks of {graph.name} share an index: program order is not known")
    holds = {value.name: value.holds for value in graph.values}
    for task, used in zip(graph.tasks, uses, strict=True):
        storage = _accessed_in_secret(task, used, holds) if task.launches else None
        if storage is not None:
            message = f"{describe_task(task)} does not say that it accesses {storage}"
            raise illegal(graph, message, task)


def _accessed_in_secret(
    task: Task, used: Sequence[str], holds: Mapping[str, Sequence[str]]
) -> str | None:
    reads, writes = task.reads, task.writes
    for name in used:
        for storage in holds[name]:
            if storage not in reads and storage not in writes:
                return storage
    return next((storage for storage in task.allocates if storage not in writes), None)
