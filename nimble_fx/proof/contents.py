"""Whether a program that writes over operands still reads everywhere what it read before."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from torch._ops import OpOverload

from nimble_fx.errors import ScheduleError
from nimble_fx.ir import Task, TaskGraph, ref_names
from nimble_fx.proof.excerpt import describe, illegal

_around = attrgetter("inputs", "constants", "outputs")
_meaning = attrgetter("name", "args", "kwargs", "type", "index", "ordered", "after")


def check_contents(graph: TaskGraph, traced: TaskGraph) -> None:
    """The program may be the other with some operators in place.

    Args:
        graph: the program, before it is scheduled.
        traced: the other.

    Raises:
        ScheduleError: a task does something else, or reads what another has written over.
    """
    if _around(graph) != _around(traced) or len(graph.tasks) != len(traced.tasks):
        raise ScheduleError(f"{graph.name} is not what was traced, with operators in place")
    holds = {value.name: value.holds for value in graph.values}
    for task, other in zip(graph.tasks, traced.tasks, strict=True):
        if task is other:
            continue
        if _meaning(task) != _meaning(other) or task.launches != other.launches:
            raise illegal(graph, f"{describe(task)} is not what was traced", task)
        if task.target is not other.target:
            first = holds[task.uses[0]] if task.uses else ()
            _check_in_place(graph, task, other, first)
    for (reader, name, found), (_, _, expected) in zip(_read(graph), _read(traced), strict=True):
        if found != expected:
            message = f"{reader} reads {name} where {found} wrote last, not {expected}"
            raise illegal(graph, message, graph.by_name.get(reader))


def _check_in_place(graph: TaskGraph, task: Task, traced: Task, first: Sequence[str]) -> None:
    """By its name it is the operator in place, and it says that it writes its first operand."""
    old, new = traced.target, task.target
    if not isinstance(old, OpOverload) or not isinstance(new, OpOverload):
        raise illegal(graph, f"{describe(task)} calls {new}, not {old}", task)
    named = f"{old._schema.name}_", old._overloadname
    writes = task.writes == task.holds == first and not task.allocates
    if (new._schema.name, new._overloadname) != named or not writes:
        raise illegal(graph, f"{describe(task)} is not {old} in place", task)


def _read(graph: TaskGraph) -> Iterator[tuple[str, str, tuple[str | None, ...]]]:
    """Who reads which value, and who wrote last to the memory that it lies in, in program order.

    The caller reads last: what is returned, and all that the call was given.
    """
    holds = {value.name: value.holds for value in graph.values}
    writer: dict[str, str] = {}
    for task in graph.tasks:
        if task.launches:
            for name in task.uses:
                yield task.name, name, tuple([writer.get(s) for s in holds[name]])
            writer.update(dict.fromkeys(task.writes, task.name))
    given = [value.name for value in (*graph.inputs, *graph.constants)]
    for name in (*ref_names(graph.outputs), *given):
        yield "the caller", name, tuple([writer.get(s) for s in holds[name]])
