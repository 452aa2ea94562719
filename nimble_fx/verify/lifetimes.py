"""Liveness: no value is used after it is freed, and no block is reused while it may be in use."""

from collections.abc import Iterable
from typing import NamedTuple

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Task, TaskGraph, ref_names, shared_by_inputs
from nimble_fx.verify.diagnostics import describe_task, illegal
from nimble_fx.verify.happens_before import HappensBefore


def check_frees(graph: TaskGraph, order: HappensBefore) -> None:
    """Checks frees by simulating the references and allocations of one call.

    Args:
        graph: the schedule.
        order: its happens-before order.
    """
    _check_lifetimes(graph)
    allocator = _Allocator(graph, order)
    for task in graph.tasks:
        allocator.launch(task)
        for name in task.frees:
            allocator.drop(name, task)


def _check_lifetimes(graph: TaskGraph) -> None:
    """Checks that each freed value is live, not the caller's, and not used or returned later."""
    inputs = (*graph.inputs, *graph.constants)
    callers = {value.name for value in inputs if value.static}
    callers.update(value.name for value in graph.constants)
    shared = shared_by_inputs(graph)
    sharing = {value.name for value in graph.inputs if not shared.isdisjoint(value.holds)}
    alive = {value.name for value in inputs}
    for task in graph.tasks:
        if not alive.issuperset(task.uses):
            name = next(name for name in task.uses if name not in alive)
            raise _use_after_free(graph, f"{describe_task(task)} uses {name}", name, task)
        alive.add(task.name)
        for name in task.frees:
            if name in callers or name in sharing or name not in alive:
                raise _invalid_free(graph, name, task, name in callers, name in sharing)
            alive.discard(name)
    for name in ref_names(graph.outputs):
        if name not in alive:
            raise _use_after_free(graph, f"{graph.name} returns {name}", name)


def _invalid_free(
    graph: TaskGraph, name: str, task: Task, is_callers: bool, is_sharing: bool
) -> ScheduleError:
    before = graph.tasks[: graph.tasks.index(task) + (task.frees.count(name) > 1)]
    first = next((one for one in before if name in one.frees), None)
    why = f"it is already freed after {describe_task(first)}" if first else "it is not defined yet"
    if is_sharing:
        why = "it shares memory with another input, and in another call it may have its own"
    why = "the caller keeps it" if is_callers else why
    message = f"{describe_task(task)} frees {name}, which is not legal: {why}"
    return illegal(graph, message, task, first)


def _use_after_free(graph: TaskGraph, what: str, name: str, *users: Task) -> ScheduleError:
    last = next(task for task in graph.tasks if name in task.frees)
    fix = "needs to be freed later" if users else "is the caller's and must not be freed"
    message = f"{what}, which has been freed\nit is freed after {describe_task(last)}: {name} {fix}"
    return illegal(graph, message, last, *users)


class _Freed(NamedTuple):
    """A storage that no live value holds, with the value dropped last and the task after which."""

    value: str
    storage: str
    after: Task

    def __str__(self) -> str:
        return self.value if self.value == self.storage else f"{self.value} (in {self.storage})"


class _Allocator:
    """A model of the caching allocator: reference counts of storages, and free blocks by stream."""

    def __init__(self, graph: TaskGraph, order: HappensBefore) -> None:
        self._graph, self._order = graph, order
        values = (*graph.inputs, *graph.constants)
        self._holds = {value.name: value.holds for value in values}
        self._n_holders: dict[str, int] = {}
        for value in values:
            self._hold(value.holds)
        self._allocating_stream = {s: task.stream for task in graph.tasks for s in task.allocates}
        self._accesses: dict[str, list[Task]] = {}
        for task in graph.tasks:
            for storage in (*task.reads, *task.writes):
                self._accesses.setdefault(storage, []).append(task)
        self._newest_on_stream_0: Task | None = None
        self._free_blocks: dict[int | None, list[_Freed]] = {
            stream: [] for stream in range(order.n_streams)
        }

    def launch(self, task: Task) -> None:
        """Makes the task's value live; the task may reuse the free blocks of its stream."""
        self._holds[task.name] = task.holds
        self._hold(task.holds)
        if task.stream is not None:
            if self._free_blocks[task.stream]:
                self._reuse(task, task.stream)
            if task.stream == 0:
                self._newest_on_stream_0 = task

    def drop(self, name: str, task: Task) -> None:
        """Drops a value after a task; frees the storages that no other value holds."""
        for storage in self._holds.pop(name, ()):
            self._n_holders[storage] -= 1
            if not self._n_holders[storage]:
                self._free(_Freed(name, storage, task))

    def _hold(self, storages: Iterable[str]) -> None:
        for storage in storages:
            self._n_holders[storage] = self._n_holders.get(storage, 0) + 1

    def _free(self, freed: _Freed) -> None:
        """Returns a block to the allocating stream, or to any stream if the caller allocated it.

        Other threads may allocate on stream 0 at once. Later work on a side stream happens after
        the whole program (`DeviceRuntime.settle`).
        """
        is_own = freed.storage in self._allocating_stream
        owners = [self._allocating_stream[freed.storage]] if is_own else self._free_blocks
        for stream in owners:
            self._free_blocks[stream].append(freed)
        if 0 in owners:
            self._reuse(None, 0)

    def _reuse(self, task: Task | None, stream: int) -> None:
        """Checks that whatever may reuse a stream's free blocks happens after each access of them.

        Args:
            task: the task that may; None for another thread on stream 0, which runs after the
                stream's newest task.
            stream: the stream that allocates.
        """
        user = task or self._newest_on_stream_0
        for freed in self._free_blocks[stream]:
            for access in self._accesses.get(freed.storage, ()):
                if access is user:
                    continue
                if user is None or not self._order.ordered(access, user):
                    raise self._freed_too_early(freed, task, access)
        self._free_blocks[stream].clear()

    def _freed_too_early(self, freed: _Freed, task: Task | None, access: Task) -> ScheduleError:
        next_one = describe_task(task) if task else "whatever stream 0 runs next"
        message = (
            f"{freed} is freed after {describe_task(freed.after)}, but {next_one} "
            f"may get its memory before {describe_task(access)} is done with it"
        )
        if task is not None:
            message += f"\n{self._order.explain_race(access, task)}, or "
        else:
            newest = self._newest_on_stream_0
            message += (
                f"\nno task of stream 0 so far waits for {access.name}"
                f"{f'; its newest task is {newest.name}' if newest else ''}: "
            )
        message += f"{freed.value} needs to be freed later"
        user = task or self._newest_on_stream_0
        return illegal(self._graph, message, freed.after, user, access)
