"""Checks that a schedule has the tasks of its trace, and a text the tasks of its schedule."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.arguments import map_leaves
from nimble_fx.ir.task_graph import Arg, Ref, Task, TaskGraph, target_name
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.parse import ParsedModule

_OF_SCHEDULES = {"after", "stream", "waits", "frees"}
"""The attributes of tasks that passes may change."""

_MEANING = tuple(
    field.name
    for field in fields(Task)
    if field.compare and field.name not in {"name", "args", "kwargs", *_OF_SCHEDULES}
)
_meaning = attrgetter(*_MEANING)
_OF_SLICES = ("start", "stop", "step")


def check_same_program(graph: TaskGraph, traced: TaskGraph) -> None:
    """Checks that a schedule changes only streams, waits, frees and the launch order."""
    scheduled, program = ({task.name: task for task in g.tasks} for g in (graph, traced))
    for what in ("name", "inputs", "constants", "labels"):
        if getattr(graph, what) != getattr(traced, what):
            raise ScheduleError(f"the schedule changes the {what} of {traced.name}")
    if scheduled.keys() != program.keys() or not _same(graph.outputs, traced.outputs, {}):
        changed = sorted(scheduled.keys() ^ program.keys())
        raise ScheduleError(
            f"the schedule of {graph.name} loses or adds tasks or outputs: {changed}"
        )
    for name, task in scheduled.items():
        traced_task = program[name]
        found, expected = _meaning(task), _meaning(traced_task)
        if found != expected:
            pairs = zip(_MEANING, found, expected, strict=True)
            changed = [attribute for attribute, one, other in pairs if one != other]
            raise ScheduleError(
                f"the schedule changes {', '.join(changed)} of {describe_task(traced_task)}"
            )
        if task.args is not traced_task.args or task.kwargs is not traced_task.kwargs:
            _check_same_arguments(task, traced_task)


def _check_same_arguments(task: Task, traced: Task) -> None:
    """Compares types too, because Python's 1 equals 1.0 and True; NaN is NaN."""
    for what in ("args", "kwargs"):
        found, expected = getattr(task, what), getattr(traced, what)
        if not _same(found, expected, {}):
            raise ScheduleError(f"the schedule changes {what} of {describe_task(task)}")


def check_same_schedule(parsed: ParsedModule, graph: TaskGraph) -> None:
    """Checks that a text has the graph's tasks, order, streams, waits, forks, joins and frees.

    Values may have other names. An item of an operator's results launches nothing and may stand
    anywhere after it; a single item is on the operator's line in the text.
    """
    names = _names_of_inputs(parsed, graph)
    found_tasks, expected_tasks = (_items_after_operators(g.tasks) for g in (parsed.graph, graph))
    n_text, n_graph = len(found_tasks), len(expected_tasks)
    count = f"the text has {n_text} tasks and {graph.name} has {n_graph}"
    for text, task in zip(found_tasks, expected_tasks, strict=False):
        names[text.name] = task.name
        for what, found, expected in _differences(text, task, names):
            message = (
                f"the text is not the schedule of {graph.name}: it has {describe_task(text)} where "
                f"{describe_task(task)} is expected\n"
                f"its {what}: {_shown(found)}, not {_shown(expected)}"
            )
            if n_text != n_graph:
                message += f"; {count}: a line may be missing or extra, here or before"
            raise illegal(parsed.graph, message, text)
    if n_text != n_graph:
        raise ScheduleError(count)
    if parsed.graph.urgent != graph.urgent:
        found, expected = parsed.graph.urgent, graph.urgent
        raise ScheduleError(f"the text has URGENT = {found!r}, and {graph.name} has {expected!r}")
    _check_forks_and_joins(parsed, graph, names)
    _check_outputs(parsed.graph.outputs, graph, names)


def _check_forks_and_joins(
    parsed: ParsedModule, graph: TaskGraph, names: Mapping[str, str]
) -> None:
    for what, found, expected in (
        ("wait for the start of stream 0", parsed.forks, graph.forks),
        ("are waited for at the end", parsed.joins, graph.joins),
    ):
        renamed = sorted({names[name] for name in found})
        if renamed != sorted(expected):
            shown, due = (", ".join(tasks) or "none" for tasks in (renamed, sorted(expected)))
            raise ScheduleError(f"the tasks that {what} are {shown}, and in {graph.name} {due}")


def _check_outputs(outputs: tuple[Arg, ...], graph: TaskGraph, names: Mapping[str, str]) -> None:
    what = f"the text does not return what {graph.name} does"
    if len(outputs) != len(graph.outputs):
        raise ScheduleError(f"{what}: {len(outputs)} results, not {len(graph.outputs)}")
    for i, (found, expected) in enumerate(zip(outputs, graph.outputs, strict=True)):
        if not _same(found, expected, names):
            returned = _shown(_renamed(found, names))
            raise ScheduleError(f"{what}: result {i} is {returned}, not {_shown(expected)}")


def _names_of_inputs(parsed: ParsedModule, graph: TaskGraph) -> dict[str, str]:
    """The graph's names of inputs and parameters, by the text's; checks that they alias alike."""
    inputs = [value for value in graph.inputs if not value.static]
    bound = [value for value in graph.inputs if value.static] + list(graph.constants)
    texts = parsed.graph.inputs
    if len(texts) != len(inputs) + len(bound) or len(bound) != parsed.n_parameters:
        raise ScheduleError(
            f"the text takes {len(texts)} inputs and parameters, of which {parsed.n_parameters} "
            f"parameters; {graph.name} takes {len(inputs)} and {len(bound)}"
        )
    pairs = list(zip(texts, [*inputs, *bound], strict=True))
    names = {text.name: value.name for text, value in pairs}
    first: dict[str, str] = {}
    for text, value in pairs:
        lies_in = tuple([first.setdefault(storage, value.name) for storage in value.holds])
        if tuple([names[owner] for owner in text.holds]) != lies_in:
            raise ScheduleError(
                f"{text.name} lies in the memory of {text.holds} in the text, but in the memory "
                f"of {lies_in} in {graph.name}"
            )
    return names


def _items_after_operators(tasks: Iterable[Task]) -> list[Task]:
    """The tasks in their order, but each item directly after the operator that it comes from."""
    tasks = list(tasks)
    root: dict[str, int] = {}
    for i, task in enumerate(tasks):
        root[task.name] = root.get(task.args[0].name, i) if task.is_item else i
    return sorted(tasks, key=lambda task: root[task.name])


def _differences(
    text: Task, task: Task, names: Mapping[str, str]
) -> Iterable[tuple[str, Any, Any]]:
    """The differences between the text's task and the graph's: (what, found, expected)."""
    if not _is_same_operator(text.target, task.target):
        yield "operator", target_name(text.target), target_name(task.target)
    if not _same(text.args, task.args, names):
        yield "arguments", _renamed(text.args, names), task.args
    if text.kwargs or task.kwargs:
        found, expected = _by_keyword(text), _by_keyword(task)
        if not _same(found, expected, names):
            yield "keyword arguments", _renamed(found, names), expected
    if text.stream != task.stream:
        yield "stream", text.stream, task.stream
    for what, listed, due in (
        ("list of waits", text.waits, task.waits),
        ("list of frees", text.frees, task.frees),
    ):
        if listed or due:
            renamed = sorted([names.get(name, name) for name in listed])
            if renamed != sorted(due):
                yield what, renamed, sorted(due)


def _is_same_operator(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two targets are one; of a custom operator PyTorch may make another object any time.

    It does so when the library of a former definition of the operator is garbage-collected.
    """
    if one is other or not (isinstance(one, OpOverload) and isinstance(other, OpOverload)):
        return one is other
    return str(schema_of(one)) == str(schema_of(other))


def _by_keyword(task: Task) -> tuple[tuple[str, Arg], ...]:
    return tuple(sorted(task.kwargs, key=itemgetter(0)))


def _renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    """An argument of the text, with the graph's names for values."""

    def renamed(leaf: Any) -> Any:
        return Ref(names.get(leaf.name, leaf.name)) if type(leaf) is Ref else leaf

    argument: Arg = map_leaves(renamed, arg)
    return argument


def _shown(arg: Arg) -> str:
    """An argument as text, with values by their names."""
    if type(arg) is Ref:
        return arg.name
    if type(arg) is tuple:
        return f"({', '.join(map(_shown, arg))})"
    return repr(arg)


def _same(found: Arg, expected: Arg, names: Mapping[str, str]) -> bool:
    """Whether an argument of the text, renamed, is identical to the graph's.

    1 differs from True and 1.0, -0.0 from 0.0, and nan equals nan.
    """
    kind = type(found)
    if kind is Ref:
        return type(expected) is Ref and names.get(found.name, found.name) == expected.name
    if kind is tuple or kind is list:
        if not isinstance(expected, (tuple, list)) or len(found) != len(expected):
            return False
        return all(map(_same, found, expected, repeat(names)))
    if kind is not type(expected):
        return False
    if kind is slice:
        return all(_same(getattr(found, x), getattr(expected, x), names) for x in _OF_SLICES)
    if kind is float or kind is complex:
        return repr(found) == repr(expected)
    return bool(found == expected)
