"""Whether two task graphs are the same program: a schedule its trace's, a text its schedule's."""

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.arguments import map_leaves
from nimble_fx.ir.task_graph import Arg, Ref, Task, TaskGraph, target_name
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.parse import Parsed

_MEANING = (
    *("target", "args", "kwargs", "type", "index"),
    *("reads", "writes", "allocates", "holds", "ordered"),
)
_meaning = attrgetter(*_MEANING)
_OF_SLICES = ("start", "stop", "step")


def check_same_program(graph: TaskGraph, traced: TaskGraph) -> None:
    """A schedule adds streams, waits, frees and an order; what the tasks do stays as it was."""
    scheduled, program = ({task.name: task for task in g.tasks} for g in (graph, traced))
    if (graph.inputs, graph.constants) != (traced.inputs, traced.constants):
        raise ScheduleError(f"the schedule of {graph.name} is given something else")
    if scheduled.keys() != program.keys() or graph.outputs != traced.outputs:
        changed = sorted(scheduled.keys() ^ program.keys())
        raise ScheduleError(f"the schedule of {graph.name} loses or adds tasks: {changed}")
    for name, task in scheduled.items():
        traced_task = program[name]
        found, expected = _meaning(task), _meaning(traced_task)
        if found != expected:
            pairs = zip(_MEANING, found, expected, strict=True)
            changed = [attribute for attribute, one, other in pairs if one != other]
            raise ScheduleError(
                f"the schedule changes {', '.join(changed)} of {describe_task(task)}"
            )
        if task.args is not traced_task.args or task.kwargs is not traced_task.kwargs:
            _check_same_arguments(task, traced_task)


def _check_same_arguments(task: Task, traced: Task) -> None:
    """To the bit: equal is not enough, because Python's 1 equals 1.0 and True."""
    for what in ("args", "kwargs"):
        found, expected = getattr(task, what), getattr(traced, what)
        if not _same(found, expected, {}):
            raise ScheduleError(f"the schedule changes {what} of {describe_task(task)}")


def check_same_schedule(parsed: Parsed, graph: TaskGraph) -> None:
    """The text has the graph's tasks in its order, streams, waits, forks, joins, frees, outputs.

    Values may have other names. An item of an operator's results launches nothing and may stand
    anywhere after it; the text has the only one on the operator's line.
    """
    names = _names_of_given(parsed, graph)
    written, meant = (_items_behind_operators(g.tasks) for g in (parsed.graph, graph))
    n_text, n_graph = len(written), len(meant)
    count = f"the text has {n_text} tasks and {graph.name} has {n_graph}"
    for text, task in zip(written, meant, strict=False):
        names[text.name] = task.name
        for what, found, expected in _differences(text, task, names):
            message = (
                f"the text is not the schedule of {graph.name}: {describe_task(text)} stands where "
                f"{describe_task(task)} is meant\n"
                f"its {what}: {_shown(found)}, not {_shown(expected)}"
            )
            if n_text != n_graph:
                message += f"; {count}: a line may be missing, or one too many, here or before"
            raise illegal(parsed.graph, message, text)
    if n_text != n_graph:
        raise ScheduleError(count)
    if parsed.graph.urgent != graph.urgent:
        found, meant_one = parsed.graph.urgent, graph.urgent
        raise ScheduleError(f"the text has URGENT = {found!r}, and {graph.name} has {meant_one!r}")
    _check_ends(parsed, graph, names)
    _check_outputs(parsed.graph.outputs, graph, names)


def _check_ends(parsed: Parsed, graph: TaskGraph, names: Mapping[str, str]) -> None:
    """What waits for the start of stream 0, and what stream 0 waits for at the end."""
    for what, found, expected in (
        ("wait for the start of stream 0", parsed.forks, graph.forks),
        ("are waited for at the end", parsed.joins, graph.joins),
    ):
        renamed = sorted({names[name] for name in found})
        if renamed != sorted(expected):
            shown, meant = (", ".join(tasks) or "none" for tasks in (renamed, sorted(expected)))
            raise ScheduleError(f"the tasks that {what} are {shown}, and in {graph.name} {meant}")


def _check_outputs(outputs: tuple[Arg, ...], graph: TaskGraph, names: Mapping[str, str]) -> None:
    what = f"the text does not return what {graph.name} does"
    if len(outputs) != len(graph.outputs):
        raise ScheduleError(f"{what}: {len(outputs)} results, not {len(graph.outputs)}")
    for i, (found, expected) in enumerate(zip(outputs, graph.outputs, strict=True)):
        if not _same(found, expected, names):
            returned = _shown(_renamed(found, names))
            raise ScheduleError(f"{what}: result {i} is {returned}, not {_shown(expected)}")


def _names_of_given(parsed: Parsed, graph: TaskGraph) -> dict[str, str]:
    """The graph's names of what a call is given, by the text's; it lies in the same memory."""
    given = [value for value in graph.inputs if not value.static]
    bound = [value for value in graph.inputs if value.static] + list(graph.constants)
    texts = parsed.graph.inputs
    if len(texts) != len(given) + len(bound) or len(bound) != parsed.n_parameters:
        raise ScheduleError(
            f"the text takes {len(texts)} inputs and parameters, of which {parsed.n_parameters} "
            f"parameters; {graph.name} takes {len(given)} and {len(bound)}"
        )
    pairs = list(zip(texts, [*given, *bound], strict=True))
    names = {text.name: value.name for text, value in pairs}
    first: dict[str, str] = {}
    for text, value in pairs:
        lies_in = tuple([first.setdefault(storage, value.name) for storage in value.holds])
        if tuple([names[owner] for owner in text.holds]) != lies_in:
            raise ScheduleError(
                f"the text says that {text.name} lies in the memory of {text.holds}, but "
                f"in {graph.name} that is the memory of {lies_in}"
            )
    return names


def _items_behind_operators(tasks: Iterable[Task]) -> list[Task]:
    """The tasks in their order, but each item directly behind the operator that it comes from."""
    tasks = list(tasks)
    root: dict[str, int] = {}
    for i, task in enumerate(tasks):
        root[task.name] = root.get(task.args[0].name, i) if task.is_item else i
    return sorted(tasks, key=lambda task: root[task.name])


def _differences(
    text: Task, task: Task, names: Mapping[str, str]
) -> Iterable[tuple[str, Any, Any]]:
    """What the text says of a task that the graph does not: (what, found, expected)."""
    if text.target is not task.target:
        yield "operator", target_name(text.target), target_name(task.target)
    if not _same(text.args, task.args, names):
        yield "arguments", _renamed(text.args, names), task.args
    if text.kwargs or task.kwargs:
        found, expected = _by_keyword(text), _by_keyword(task)
        if not _same(found, expected, names):
            yield "keyword arguments", _renamed(found, names), expected
    if text.stream != task.stream:
        yield "stream", text.stream, task.stream
    for what, dropped, due in (
        ("list of waits", text.waits, task.waits),
        ("list of frees", text.frees, task.frees),
    ):
        if dropped or due:
            renamed = sorted([names.get(name, name) for name in dropped])
            if renamed != sorted(due):
                yield what, renamed, sorted(due)


def _by_keyword(task: Task) -> tuple[tuple[str, Arg], ...]:
    return tuple(sorted(task.kwargs, key=itemgetter(0)))


def _renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    """An argument of the text with the graph's names."""

    def renamed(leaf: Any) -> Any:
        return Ref(names.get(leaf.name, leaf.name)) if type(leaf) is Ref else leaf

    argument: Arg = map_leaves(renamed, arg)
    return argument


def _shown(arg: Arg) -> str:
    """An argument as a person would write it: values by their names."""
    if type(arg) is Ref:
        return arg.name
    if type(arg) is tuple:
        return f"({', '.join(map(_shown, arg))})"
    return repr(arg)


def _same(found: Arg, expected: Arg, names: Mapping[str, str]) -> bool:
    """Whether an argument of the text, renamed, is the graph's to the bit.

    1 is not True nor 1.0, -0.0 is not 0.0, and nan is nan.
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
