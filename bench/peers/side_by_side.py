"""Prepares cases in parallel, each in a process of its own, and times them one at a time.

A batch of processes prepares its cases at the same time. When all of them are ready, each times its
case in turn, while the others wait. A process that dies only loses its own case.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from os import killpg, setpgid
from signal import SIGKILL, Signals
from threading import Thread
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

Work = Callable[[int, Callable[[], None]], T]
"""Runs the case of a given number; calls its second argument just before it begins to time."""

CONTEXT: SpawnContext | ForkContext = get_context("spawn")
"""Processes are not forked, because a fork could not use the GPU."""

TURN_SECONDS = 10.0
"""Seconds that are reserved for the turn of each ready case."""

EXIT_SECONDS = 10.0
"""Seconds in which a process must end after its answer."""

READY, GO = "ready", "go"


@dataclass(frozen=True)
class Done(Generic[T]):
    """The answer of a process."""

    result: T


@dataclass(frozen=True)
class Died:
    """A process ended without an answer; `how` says with which exit code or signal."""

    how: str


class Worker(Generic[T]):
    """A process that runs one case.

    Attributes:
        case: its number.
        heard: its last message: READY, its answer, or that it died; None if there was none.
    """

    def __init__(self, work: Work[T], case: int) -> None:
        self.case = case
        self.heard: str | Done[T] | Died | None = None
        self._pipe, its_end = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(work, case, its_end))
        self._process.start()
        its_end.close()  # otherwise this process would keep the pipe of a dead one open
        self.signs: tuple[Connection, int] = (self._pipe, self._process.sentinel)

    def listen(self, seconds: float | None = None) -> None:
        """Waits for a message or the end of the process, without limit if `seconds` is None."""
        if not wait(self.signs, seconds):
            return
        word = self._received()
        if word != READY:
            self.close(EXIT_SECONDS)
        self.heard = word or Died(_how(self._process.exitcode))

    def _received(self) -> str | Done[T] | None:
        """The message of the process; None if it has died, perhaps in the middle of a message."""
        try:
            return self._pipe.recv() if self._pipe.poll() else None
        except (EOFError, OSError):
            return None

    def take_turn(self, end: float) -> T | Died | None:
        """Lets the process time its case; None if it is not ready, or the time is over."""
        if self.heard == READY and monotonic() <= end:
            with suppress(OSError):  # it has died; `listen` finds out how
                self._pipe.send(GO)
            self.listen()
        if isinstance(self.heard, Done):
            return self.heard.result
        return self.heard if isinstance(self.heard, Died) else None

    def close(self, seconds: float = 0.0) -> None:
        """Waits until the process and all that it started have ended; kills what is left."""
        if self._pipe.closed:
            return
        wait([self._process.sentinel], seconds)
        self._process.kill()  # it may have no group yet
        if self._process.pid is not None:
            with suppress(ProcessLookupError):
                killpg(self._process.pid, SIGKILL)
        self._process.join()
        self._pipe.close()


def side_by_side(
    work: Work[T],
    n_cases: int,
    jobs: int,
    end: float,
    begin: Callable[[int], None] = lambda case: None,
) -> Generator[tuple[int, T | Died], None, None]:
    """Yields the results of the cases that are reached, in order, each as soon as possible.

    Args:
        work: runs a case in a process; it can be pickled.
        n_cases: the number of cases, which are numbered from 0.
        jobs: the most processes at the same time.
        end: the time (of `monotonic`) after which no process starts and no turn begins.
        begin: called with the number of a case when its process starts.
    """
    for first in range(0, n_cases, jobs):
        if monotonic() > end:
            return
        with ExitStack() as stack:
            batch: list[Worker[T]] = []
            for case in range(first, min(first + jobs, n_cases)):
                begin(case)
                batch.append(stack.enter_context(closing(Worker(work, case))))
            _prepare(batch, end)
            for worker in batch:
                result = worker.take_turn(end)
                if result is not None:
                    yield worker.case, result


def _prepare(batch: Sequence[Worker[T]], end: float) -> None:
    """Waits until all processes are ready; kills those that would leave the others no time."""
    while waiting := [worker for worker in batch if worker.heard is None]:
        n_ready = sum(worker.heard == READY for worker in batch)
        left = end - TURN_SECONDS * n_ready - monotonic()
        if left <= 0:
            break
        wait([sign for worker in waiting for sign in worker.signs], min(left, TURN_SECONDS))
        for worker in waiting:
            worker.listen(0)
    for worker in waiting:
        worker.close()


def _serve(work: Work[T], case: int, pipe: Connection) -> None:
    """The main function of a process: runs the case; the parent announces its turn."""
    setpgid(0, 0)  # so that processes that it starts are killed with it
    Thread(target=_die_with_parent, daemon=True).start()

    def wait_for_turn() -> None:
        pipe.send(READY)
        pipe.recv()

    pipe.send(Done(work(case, wait_for_turn)))


def _die_with_parent() -> None:
    """Kills this process and all that it has started when the parent ends, however that happens."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        killpg(0, SIGKILL)


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = {signal.value: signal.name for signal in Signals}.get(-exitcode, "no name")
        return f"the process died with signal {-exitcode} ({name})"
    return f"the process died with exit code {exitcode}"
