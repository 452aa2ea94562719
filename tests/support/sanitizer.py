"""PyTorch's stream sanitizer (`torch.cuda._sanitizer`), applied to a schedule on the CPU.

It takes launch order for program order, and it forgets a block when it is freed, so that it does
not see memory that is handed out again too early. In its sight are waits, streams, forks and joins.
"""

import importlib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nimble_fx.ir.task_graph import TaskGraph

CALL, RETURN = "<call>", "<return>"
FORK = "<fork>"


def event_handler() -> Any:
    """A new one. To import it makes PyTorch call Python at each allocation and launch on a GPU.

    Tests of the GPU, which one process may run with these, must not: those calls slow all down, and
    lose the errors that PyTorch raises where memory is freed on their way.
    """
    return importlib.import_module("torch.cuda._sanitizer").EventHandler()


def races(graph: TaskGraph) -> set[tuple[str, str]]:
    """The pairs of tasks that race, the one launched first first.

    The caller is played by a storage that `CALL` and `RETURN` write on stream 0 and every task
    reads: a stream that is not forked races with the one, a stream that is not joined with the
    other.

    The sanitizer walks the Python stack at each launch; in a thread of its own that is short, and
    a launch takes 13 microseconds instead of some hundreds.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_feed, graph).result()


def _feed(graph: TaskGraph) -> set[tuple[str, str]]:
    queues = _Queues(graph.n_streams)
    queues.launch(CALL, 0, (), (CALL,))
    queues.record(FORK, 0)
    for task in graph.launching:
        stream = task.stream or 0
        for event in (*task.waits, *([FORK] if task.name in graph.forks else [])):
            queues.wait(event, stream)
        queues.allocate(task.allocates)
        queues.launch(task.name, stream, (CALL, *task.reads), task.writes)
        if task.name in graph.recorded:
            queues.record(task.name, stream)
    for event in graph.joins:
        queues.wait(event, 0)
    queues.launch(RETURN, 0, (), (CALL,))
    return queues.races


class _Queues:
    """The sanitizer by names: it knows storages and events by number."""

    def __init__(self, n_streams: int) -> None:
        self.races: set[tuple[str, str]] = set()
        self._handler = event_handler()
        self._number: defaultdict[str, int] = defaultdict(lambda: len(self._number))
        for stream in range(1, n_streams):  # it has the default stream from the beginning
            self._handler._handle_stream_creation(stream)

    def record(self, event: str, stream: int) -> None:
        self._handler._handle_event_creation(self._number[event])
        self._handler._handle_event_record(self._number[event], stream)

    def wait(self, event: str, stream: int) -> None:
        self._handler._handle_event_wait(self._number[event], stream)

    def allocate(self, storages: Iterable[str]) -> None:
        for storage in storages:
            self._handler._handle_memory_allocation(self._number[storage])

    def launch(self, name: str, stream: int, reads: Iterable[str], writes: Iterable[str]) -> None:
        written = {self._number[storage] for storage in writes}
        read_only = {self._number[storage] for storage in reads} - written
        aliases: dict[int, list[str]] = {pointer: [] for pointer in read_only | written}
        errors = self._handler._handle_kernel_launch(
            stream, read_only, written, set(), name, aliases
        )
        for error in errors:
            self.races.add((error.previous_access.operator, error.current_access.operator))
