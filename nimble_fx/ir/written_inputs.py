"""The values that a task writes to, and the inputs that a task graph writes to."""

from collections.abc import Iterator

from nimble_fx.ir.operator_aliasing import written_or_returned
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names
from nimble_fx.torch_internals.names import OpOverload


def written_inputs(graph: TaskGraph) -> set[str]:
    """The names of the inputs that a task writes to, through the input itself or a view of it.

    Another input that shares a storage with one of these is not among them: storages say which
    tasks depend on each other, and two inputs may be disjoint parts of one storage. Where the
    operator's schema does not say what it writes, all inputs of the storage are. Cost: O(tasks).
    """
    storages = {value.name: set(value.holds) for value in graph.values}
    behind = {value.name: {value.name} for value in graph.inputs}
    in_storage: dict[str, set[str]] = {}
    for value in graph.inputs:
        for storage in value.holds:
            in_storage.setdefault(storage, set()).add(value.name)
    found: set[str] = set()
    for task in graph.tasks:
        bases = [name for name in task.uses if not storages[name].isdisjoint(task.holds)]
        behind[task.name] = set().union(*(behind.get(name, ()) for name in bases))
        if task.writes:
            written = list(written_arguments(task))
            known = set().union(*(storages[name] for name in written))
            found.update(*(behind.get(name, ()) for name in written))
            found.update(*(in_storage.get(name, ()) for name in set(task.writes) - known))
    return found


def written_arguments(task: Task) -> Iterator[str]:
    """The values that an operator writes to by its schema."""
    if not isinstance(task.target, OpOverload):
        return
    keywords = dict(task.kwargs)
    for i, parameter, is_written, _ in written_or_returned(task.target):
        if is_written:
            value = task.args[i] if i < len(task.args) else keywords.get(parameter)
            yield from ref_names(value)
