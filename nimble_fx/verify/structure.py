"""Checks of single tasks and of their order in a graph, which need no streams' happens-before."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.factories import read_values


def verify_structure(graph: TaskGraph) -> None:
    """Checks that names are unique and values are defined before use, in any graph.

    Raises:
        ScheduleError: two values have one name, or a task uses or comes after a later one.
    """
    known = [value.name for value in (*graph.inputs, *graph.constants)]
    defined = set(known)
    for task in graph.tasks:
        if task.name in defined:
            raise ScheduleError(f"two values are named {task.name}")
        if not (defined.issuperset(task.uses) and defined.issuperset(task.after)):
            name = next(name for name in (*task.uses, *task.after) if name not in defined)
            message = f"{describe_task(task)} needs {name}, which is not defined before it"
            raise illegal(graph, message, task, graph.by_name.get(name))
        defined.add(task.name)
    for name in ref_names(graph.outputs):
        if name not in defined:
            raise ScheduleError(f"{graph.name} returns {name}, which no task defines")
    if len(set(known)) != len(known):
        raise ScheduleError(f"{graph.name} has two inputs of one name: {known}")


def check_placement(graph: TaskGraph) -> None:
    """Checks that exactly the launching tasks have streams, 0..n-1, and `urgent` is one of them."""
    used: set[int] = set()
    for task in graph.tasks:
        if not task.launches:
            if task.stream is not None or task.waits:
                message = f"{describe_task(task)} launches nothing but has a stream or waits"
                raise illegal(graph, message, task)
        elif task.stream is None:
            raise illegal(graph, f"{task.name} launches kernels without a stream", task)
        elif type(task.stream) is not int:
            raise illegal(graph, f"{task.name} is on {task.stream!r}, which is not an int", task)
        else:
            used.add(task.stream)
    if used != set(range(len(used))):
        raise ScheduleError(f"{graph.name} uses streams {used}, which are not 0, 1, 2, ...")
    if graph.urgent is not None and (type(graph.urgent) is not int or graph.urgent not in used):
        urgent = f"its urgent stream is {graph.urgent!r}, not one of its {len(used)}"
        raise ScheduleError(f"{graph.name}: {urgent}")


def check_host_order(graph: TaskGraph) -> None:
    """Checks that random draws and side effects are launched in program order."""
    for first, second in pairwise(task for task in graph.tasks if task.ordered):
        if first.index > second.index:
            message = f"{describe_task(second)} must be launched before {describe_task(first)}"
            raise illegal(graph, message, first, second)


def check_accesses(graph: TaskGraph) -> None:
    """Each launching task declares that it accesses the storages whose data it may use."""
    if len({task.index for task in graph.tasks}) != len(graph.tasks):
        raise ScheduleError(f"tasks of {graph.name} share an index: program order is not known")
    holds = {value.name: value.holds for value in graph.values}
    for task in graph.launching:
        storage = _undeclared_access(task, holds)
        if storage is not None:
            message = f"{describe_task(task)} does not declare that it accesses {storage}"
            raise illegal(graph, message, task)


def _undeclared_access(task: Task, holds: Mapping[str, Sequence[str]]) -> str | None:
    """A storage that the task uses or allocates and that is not in its reads or writes."""
    reads, writes = task.reads, task.writes
    for name in read_values(task):
        for storage in holds[name]:
            if storage not in reads and storage not in writes:
                return storage
    return next((storage for storage in task.allocates if storage not in writes), None)
