"""Cases are prepared in parallel and timed one at a time; a dead process loses only its own.

Processes are forks here, which start at once; `test_comparison.py` has those that are not.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from math import inf
from multiprocessing import get_context
from pathlib import Path
from threading import Timer
from time import monotonic, sleep

import pytest

from bench.peers import side_by_side as module
from bench.peers.side_by_side import Died, Work, side_by_side

pytestmark = pytest.mark.slow

Wait = Callable[[], None]


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONTEXT", get_context("fork"))


class Log:
    """Lines that processes write, in the order of time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"
        self.path.touch()

    def write(self, *words: object) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()]

    def numbers(self, word: str) -> list[int]:
        return [int(line[1]) for line in self.lines() if line[0] == word]


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "it never came so"
        sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that ended and that nobody asked for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def logged(log: Log, companions: int) -> Work[int]:
    """Work that tells what it does; it is ready only after so many others have begun."""

    def work(case: int, wait_for_turn: Wait) -> int:
        log.write("begins", case)
        first = case // (companions + 1) * (companions + 1)
        batch = range(first, first + companions + 1)
        until(lambda: {*batch} <= {*log.numbers("begins")})
        sleep(0.1 * (case % 2))
        log.write("ready", case)
        wait_for_turn()
        log.write("turn", case)
        sleep(0.05)
        log.write("over", case)
        return 10 * case

    return work


def test_a_batch_is_prepared_side_by_side_and_timed_one_by_one_when_all_are_ready(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path)
    begun: list[int] = []
    results = list(side_by_side(logged(log, companions=1), 4, 2, inf, begun.append))
    assert results == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert begun == [0, 1, 2, 3]
    turns = [line for line in log.lines() if line[0] in ("turn", "over")]
    assert turns == [[word, str(case)] for case in range(4) for word in ("turn", "over")]
    preparing: set[str] = set()
    for word, case in log.lines():
        if word == "begins":
            preparing.add(case)
        elif word == "ready":
            preparing.remove(case)
        else:
            assert not preparing


def test_each_result_is_there_before_the_next_turn(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for case, _ in side_by_side(logged(log, companions=2), 3, 3, inf):
        log.write("kept", case)
    kept = [line for line in log.lines() if line[0] in ("turn", "kept")]
    assert kept == [[word, str(case)] for case in range(3) for word in ("turn", "kept")]


def exits(wait_for_turn: Wait) -> None:
    os._exit(3)


def raises(wait_for_turn: Wait) -> None:
    raise ValueError("whatever it was")


def is_killed(wait_for_turn: Wait) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_in_its_turn(wait_for_turn: Wait) -> None:
    wait_for_turn()
    is_killed(wait_for_turn)


def is_killed_before_its_turn(wait_for_turn: Wait) -> None:
    Timer(0.1, is_killed, (wait_for_turn,)).start()
    wait_for_turn()
    sleep(1)


@pytest.mark.parametrize(
    ("dies", "how"),
    [
        (exits, "exit code 3"),
        (raises, "exit code 1"),
        (is_killed, "signal 9 (SIGKILL)"),
        (is_killed_in_its_turn, "signal 9 (SIGKILL)"),
        (is_killed_before_its_turn, "signal 9 (SIGKILL)"),
    ],
)
@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_dies_says_how_and_the_others_have_their_turns(
    dies: Callable[[Wait], None], how: str, victim: int
) -> None:
    def work(case: int, wait_for_turn: Wait) -> str:
        if case == victim:
            dies(wait_for_turn)
        wait_for_turn()
        sleep(0.2)
        return "timed"

    expected: list[tuple[int, str | Died]] = [(case, "timed") for case in range(3)]
    expected[victim] = (victim, Died(f"the process died with {how}"))
    assert list(side_by_side(work, 3, 2, inf)) == expected


def test_one_that_answers_early_needs_no_turn() -> None:
    def work(case: int, wait_for_turn: Wait) -> int:
        if case == 1:
            wait_for_turn()
        return case

    assert list(side_by_side(work, 2, 2, inf)) == [(0, 0), (1, 1)]


def stuck(log: Log, slow: Sequence[int]) -> Work[int]:
    """Work that has a process of its own; some of it never ends."""

    def work(case: int, wait_for_turn: Wait) -> int:
        child = subprocess.Popen(["sleep", "1000"])
        log.write("process", os.getpid())
        log.write("process", child.pid)
        if case in slow:
            sleep(1000)
        wait_for_turn()
        return case

    return work


@pytest.mark.parametrize(("turn_seconds", "reached"), [(2.0, [(1, 1)]), (-1.0, [])])
def test_what_is_not_ready_in_time_is_killed_and_nothing_begins_past_the_end(
    turn_seconds: float,
    reached: list[tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time is kept for those that are ready; if there is none, none of them is timed."""
    monkeypatch.setattr(module, "TURN_SECONDS", turn_seconds)
    log = Log(tmp_path)
    assert list(side_by_side(stuck(log, slow=[0]), 2, 2, monotonic() + 3)) == reached
    assert len(log.numbers("process")) == 4
    until(lambda: not any(map(is_running, log.numbers("process"))))


def test_no_process_starts_past_the_end() -> None:
    def unexpected(case: int) -> None:
        pytest.fail(f"{case} begins")

    assert list(side_by_side(lambda case, _: case, 2, 2, monotonic() - 1, unexpected)) == []


def test_who_takes_no_more_results_leaves_no_process(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with closing(side_by_side(stuck(log, slow=[]), 3, 3, inf)) as results:
        assert next(results) == (0, 0)
        assert any(map(is_running, log.numbers("process")))
    assert len(log.numbers("process")) == 6
    until(lambda: not any(map(is_running, log.numbers("process"))))


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    """A process whose two never get ready."""

    def run() -> None:
        list(side_by_side(stuck(Log(tmp_path), slow=[0, 1]), 2, 2, inf))

    process = get_context("fork").Process(target=run)
    process.start()
    assert process.pid is not None
    yield process.pid
    process.kill()
    process.join()


def test_none_outlives_the_parent_not_even_one_that_is_killed(parent: int, tmp_path: Path) -> None:
    log = Log(tmp_path)
    until(lambda: len(log.numbers("process")) == 4)
    assert all(map(is_running, log.numbers("process")))
    os.kill(parent, signal.SIGKILL)
    until(lambda: not any(map(is_running, log.numbers("process"))))
