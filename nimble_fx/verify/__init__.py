"""The one definition of a legal schedule. It imports none of the code that makes schedules.

A schedule is legal when stream order and events imply a happens-before order for every hazard (RAW,
WAR and WAW on storages), every value is defined before it is used and freed afterwards, memory is
freed only when the next task that may get it happens after its last access, and random draws and
side effects are launched in program order.

A schedule is proved twice: as the task graph from the passes, and as the emitted text that runs.
"""

from collections.abc import Collection

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.verify.equivalence import check_same_program, check_same_schedule
from nimble_fx.verify.happens_before import (
    HappensBefore,
    check_forks,
    check_hazards,
    check_joins,
)
from nimble_fx.verify.lifetimes import check_frees
from nimble_fx.verify.parse import parse
from nimble_fx.verify.reinplacing import verify_contents as verify_contents
from nimble_fx.verify.structure import (
    check_accesses,
    check_host_order,
    check_placement,
    verify_structure,
)


def verify(graph: TaskGraph, traced: TaskGraph | None = None) -> None:
    """Proves a schedule free of races, or raises an error that names the race.

    The proof holds within one call, and relies on the tasks' `reads` and `writes`.
    Cost: O(tasks + waits x streams + accesses), and O(streams x accesses) for each input that is
    freed.

    Args:
        graph: the schedule.
        traced: the program that it schedules, whose tasks must be the same.

    Raises:
        ScheduleError: the schedule is not legal. The message names the two tasks, their streams,
            the storage and the user's lines, and shows the launch order around them.
    """
    if traced is not None:
        check_same_program(graph, traced)
    verify_structure(graph)
    check_accesses(graph)
    _prove(graph, graph.forks, graph.joins)


def verify_source(text: str, graph: TaskGraph | None = None) -> None:
    """Proves an emitted module free of races from its text alone; `text` may be edited by hand.

    The statements of `call` are parsed line by line and proved like a schedule. Schemas say what
    each operator reads, writes and allocates, and the program order is the order of the lines.
    Statements that no emitted module has are refused, because they cannot be proved.

    Two things follow from `graph` but not from a text: the order in which the program draws random
    numbers, and whether an operator that may return a view or a copy (`reshape`, `contiguous`,
    `to`) returns a copy. Without `graph` the proof assumes both, so it may refuse a legal text.

    Args:
        text: the module.
        graph: the schedule that the text should have; operators, arguments, streams, waits, forks,
            joins, frees and outputs must then be the graph's.

    Raises:
        ScheduleError: the message names the lines of the text that race, or the line that differs.
        TypeError: `text` is not a str, or `graph` is not a TaskGraph; use a program's `source` and
            `graph`.
    """
    if not isinstance(text, str):
        raise TypeError(f"verify_source takes the text of a module, not a {type(text).__name__}")
    if not isinstance(graph, TaskGraph | None):
        raise TypeError(f"verify_source takes a program's graph, not a {type(graph).__name__}")
    parsed = parse(text, graph)
    verify_structure(parsed.graph)
    _prove(parsed.graph, parsed.forks, parsed.joins)
    if parsed.idle_waits:
        raise ScheduleError(
            f"{', '.join(parsed.idle_waits)}: the last wait is followed by no task, and no stream "
            "waits for it"
        )
    if graph is not None:
        check_same_schedule(parsed, graph)


def _prove(graph: TaskGraph, forks: Collection[str], joins: Collection[str]) -> None:
    """Runs all checks of a schedule; races first, because their messages say most.

    Args:
        graph: the schedule.
        forks: the tasks that wait for the start of stream 0.
        joins: the tasks that stream 0 waits for at the end.
    """
    check_placement(graph)
    order = HappensBefore(graph)
    check_hazards(graph, order)
    check_host_order(graph)
    check_frees(graph, order)
    check_forks(graph, frozenset(forks))
    check_joins(graph, frozenset(joins), order)
