"""Checks that a program with in-place forms reads the same values everywhere as before."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph, ref_names
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import overload_name, schema_of
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.factories import read_values

_interface = attrgetter("inputs", "constants", "outputs")
_same_in_place = attrgetter("name", "args", "kwargs", "type", "index", "ordered", "after")


def verify_contents(graph: TaskGraph, traced: TaskGraph) -> None:
    """Proves that a program equals another but for in-place forms, and reads the same values.

    Cost: O(accesses).

    Args:
        graph: the program, before it is scheduled.
        traced: the program without in-place forms.

    Raises:
        ScheduleError: a task differs otherwise, or reads a value that another has overwritten.
    """
    if _interface(graph) != _interface(traced) or len(graph.tasks) != len(traced.tasks):
        raise ScheduleError(f"{graph.name} differs from its trace by more than in-place forms")
    values = {value.name: value for value in graph.values}
    for task, other in zip(graph.tasks, traced.tasks, strict=True):
        if task is other:
            continue
        if _same_in_place(task) != _same_in_place(other) or task.launches != other.launches:
            raise illegal(graph, f"{describe_task(task)} differs from the traced task", task)
        if task.target is not other.target and not (
            _is_in_place(task.target, other.target) and _overwrites_its_first(task, values)
        ):
            message = f"{describe_task(task)} is not the in-place form of {other.target}"
            raise illegal(graph, message, task)
    for (reader, name, found), (_, _, expected) in zip(_reads(graph), _reads(traced), strict=True):
        if found != expected:
            message = f"{reader} reads {name} where {found} wrote last, not {expected}"
            raise illegal(graph, message, graph.by_name.get(reader))


def _is_in_place(form: Any, target: Any) -> bool:
    """Whether an operator is the in-place form of another, by its name and parameters."""
    if not isinstance(form, OpOverload) or not isinstance(target, OpOverload):
        return False
    named = f"{schema_of(target).name}_", overload_name(target)
    same_parameters = _parameters(form) == _parameters(target)
    return (schema_of(form).name, overload_name(form)) == named and same_parameters


def _overwrites_its_first(task: Task, values: Mapping[str, Input | Task]) -> bool:
    """Whether it writes its first operand, of its result's type, which no other operand aliases."""
    if not task.args or type(task.args[0]) is not Ref:
        return False
    first = values[task.args[0].name]
    others = [values[name] for name in task.uses if name != first.name]
    is_alone = all(set(first.holds).isdisjoint(value.holds) for value in others)
    writes = task.writes == task.holds == first.holds and not task.allocates
    return writes and is_alone and first.type == task.type


def _parameters(op: OpOverload) -> list[tuple[str, str]]:
    return [(parameter.name, str(parameter.type)) for parameter in schema_of(op).arguments]


def _reads(graph: TaskGraph) -> Iterator[tuple[str, str, tuple[str | None, ...]]]:
    """Each read in program order: (reader, value, the last writers of the value's storages).

    The caller reads last: outputs, inputs and constants.
    """
    holds = {value.name: value.holds for value in graph.values}
    writer: dict[str, str] = {}
    for task in graph.tasks:
        if task.launches:
            for name in read_values(task):
                yield task.name, name, tuple([writer.get(s) for s in holds[name]])
            writer.update(dict.fromkeys(task.writes, task.name))
    inputs = [value.name for value in (*graph.inputs, *graph.constants)]
    for name in (*ref_names(graph.outputs), *inputs):
        yield "the caller", name, tuple([writer.get(s) for s in holds[name]])
