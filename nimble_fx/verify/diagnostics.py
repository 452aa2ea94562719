"""The text of a ScheduleError: the offending tasks, and the launch order around them."""

from collections.abc import Iterable, Iterator, Sequence

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.display import aligned
from nimble_fx.ir.task_graph import Task, TaskGraph, task_row

_N_SHOWN = 10
_HEADER = ("", "#", "task", "operator", "stream", "waits", "frees", "source")


def describe_task(task: Task) -> str:
    """The task, its stream and the user's line: "add (stream 0, model.py:7: a + b)"."""
    where = "launches nothing" if task.stream is None else f"stream {task.stream}"
    line = f", {task.source}: {task.source.code}" if task.source else ""
    return f"{task.name} ({where}{line})"


def illegal(graph: TaskGraph, message: str, *offenders: Task | None) -> ScheduleError:
    """An error with an excerpt of the launch order around the offending tasks.

    Args:
        graph: the schedule that is not legal.
        message: what is wrong, and below it what would fix it.
        offenders: the offending tasks; None is ignored.
    """
    names = {task.name for task in offenders if task is not None}
    positions = [i for i, task in enumerate(graph.tasks) if task.name in names]
    if not positions:
        return ScheduleError(message)
    return ScheduleError("\n".join([message, "", *excerpt(graph, positions)]))


def excerpt(graph: TaskGraph, marked: Sequence[int]) -> list[str]:
    """About ten tasks around the `marked` positions, one line each, those marked with ">"."""
    shown = _around(marked, len(graph.tasks))
    rows = [_HEADER]
    for i in shown:
        name, operator, _, stream, waits, frees, source = task_row(graph.tasks[i])
        mark = ">" if i in marked else ""
        rows.append((mark, str(i), name, operator, stream, waits, frees, source))
    header, *lines = aligned(rows)
    title = f"{graph.name} in launch order, around what the error is about:"
    return [title, header, *_with_gaps(shown, lines)]


def _around(marked: Sequence[int], n: int) -> list[int]:
    """One window that has all marks, or one around each if they are far apart."""
    first, last = min(marked), max(marked)
    if last - first < _N_SHOWN:
        start = max(0, min(first - (_N_SHOWN - 1 - last + first) // 2, n - _N_SHOWN))
        return list(range(start, min(start + _N_SHOWN, n)))
    size = _N_SHOWN // len(marked)
    windows: set[int] = set()
    for i in marked:
        start = max(0, min(i - size // 2, n - size))
        windows.update(range(start, start + size))
    return sorted(windows)


def _with_gaps(shown: Iterable[int], lines: Iterable[str]) -> Iterator[str]:
    """The lines, with dots where tasks are left out."""
    expected: int | None = None
    for i, line in zip(shown, lines, strict=True):
        if expected is not None and i != expected:
            yield "   ..."
        yield line
        expected = i + 1
