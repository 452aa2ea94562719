"""Times calls in turn, so that a change of the machine's speed affects all of them."""

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from time import perf_counter

import torch

from nimble_fx.runtime.capture import gc_guard

Call = Callable[[], object]
CPU = torch.device("cpu")

SAMPLE_SECONDS, MAX_CALLS = 0.05, 100
"""A sample has as many calls as take about this time, and at most this number."""


@dataclass(frozen=True)
class Spread:
    """The median, least and greatest of some samples."""

    median: float
    min: float
    max: float
    n_samples: int

    @staticmethod
    def of(samples: Sequence[float]) -> "Spread":
        """The spread of one sample or more."""
        return Spread(statistics.median(samples), min(samples), max(samples), len(samples))

    def milliseconds(self) -> str:
        """As text, for seconds: "12.34 ms (11.90 to 15.02)"."""
        low, middle, high = (f"{1e3 * x:.2f}" for x in (self.min, self.median, self.max))
        return f"{middle} ms ({low} to {high})"

    def ratio(self) -> str:
        """As text, for ratios: "1.012 (0.981 to 1.105)"."""
        return f"{self.median:.3f} ({self.min:.3f} to {self.max:.3f})"


def synchronize() -> None:
    """Waits until the GPU, if there is one, has finished all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def calls_per_sample(call: Call) -> int:
    """The number of calls that last long enough for a sample, but not too long."""
    start = perf_counter()
    call()
    synchronize()
    return min(MAX_CALLS, ceil(SAMPLE_SECONDS / (perf_counter() - start)))


def interleaved_seconds(
    calls: Mapping[str, Call],
    rounds: int,
    calls_per_round: int = 1,
    after_round: Call = lambda: None,
    device: torch.device = CPU,
) -> dict[str, list[float]]:
    """The seconds of a call, for each of `calls` and each round.

    In a round each takes its turn: one call that is not timed, then `calls_per_round` that are,
    as one sample. The order rotates from round to round. Python's collector runs between rounds
    only.

    Args:
        calls: the contestants.
        rounds: the number of samples of each.
        calls_per_round: the number of calls of a sample, which is their mean.
        after_round: called between rounds.
        device: the device of the calls; a GPU's time is measured with events on its current stream.
    """
    seconds_per_call = _gpu_seconds_per_call if device.type == "cuda" else _seconds_per_call
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        first = i % len(names)
        with collected_before():
            for name in names[first:] + names[:first]:
                samples[name].append(seconds_per_call(calls[name], calls_per_round))
        after_round()
    return samples


def uncollected_seconds(call: Call, rounds: int) -> list[float]:
    """The seconds of a call, round by round; Python's collector only runs between rounds."""
    samples = []
    for _ in range(rounds):
        with collected_before():
            start = perf_counter()
            call()
            samples.append(perf_counter() - start)
    return samples


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The spread of the ratios of two series, round by round."""
    return Spread.of([a / b for a, b in zip(numerators, denominators, strict=True)])


def _seconds_per_call(call: Call, n_calls: int) -> float:
    call()
    synchronize()  # the host's time is not that of waiting for another contestant's kernels
    start = perf_counter()
    for _ in range(n_calls):
        call()
    return (perf_counter() - start) / n_calls


def _gpu_seconds_per_call(call: Call, n_calls: int) -> float:
    """From an idle GPU until it has finished the last call."""
    call()
    gpu_seconds = gpu_stopwatch()
    for _ in range(n_calls):
        call()
    return gpu_seconds() / n_calls


def gpu_stopwatch() -> Callable[[], float]:
    """Starts a stopwatch for the current stream, with an idle GPU.

    Returns:
        A function that waits for the GPU, and returns the seconds that it took since the start.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()

    def stop() -> float:
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return stop


@contextmanager
def collected_before() -> Iterator[None]:
    """Collects garbage now, and none until the end of the block."""
    gc.collect()
    with gc_guard.paused():
        yield
