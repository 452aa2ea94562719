"""Which schedule of a program is the fastest on its device, found by timing captures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from traceback import clear_frames

from nimble_fx.errors import StateError
from nimble_fx.runtime.captured_graph import CapturedGraph
from nimble_fx.runtime.launch import Launcher
from nimble_fx.selection.candidate import MARGIN

N_ROUNDS = 9
"""Samples of each schedule, taken in turn, so that what slows the device down meets all of them."""

N_REPLAYS = 10
"""Replays in a sample; one where replays change the model's state, which is then put back."""

Times = Sequence[float | None]
"""For each schedule the median of its replays in microseconds; None if it was not timed."""

Samples = dict[int, list[float]]
"""For each schedule that was timed, microseconds of a replay, round by round."""


@dataclass(frozen=True)
class AutotuneResult:
    """How a trial went.

    Attributes:
        winner: the position of the schedule that runs from now on.
        times: what each took.
    """

    winner: int
    times: Times


@dataclass(frozen=True)
class Autotuner:
    """The schedules of one program, to be timed when it is first captured.

    Attributes:
        launchers: of each schedule, one of them on one stream.
        on_result: is to be told how it went, once the winner runs.

    Cost: for each schedule a capture, whose memory they run at the same time, and up to
    `(N_ROUNDS + 1) * N_REPLAYS` replays.
    """

    launchers: Sequence[Launcher]
    on_result: Callable[[AutotuneResult], None]

    def run(
        self,
        record: Callable[[Launcher], CapturedGraph],
        time_us: Callable[[CapturedGraph, int], float],
    ) -> AutotuneResult | None:
        """Times the schedules; None if not one could be captured, which its own capture explains.

        One that fails, for want of memory say, is out. All captures are gone at the end.

        Args:
            record: captures a schedule, in memory of its own.
            time_us: microseconds of a replay, the mean of so many in a row.

        Raises:
            StateError: the model's state is not what it was.
        """
        captured_graphs = self._captured(record)
        if not captured_graphs:
            return None
        try:
            samples = self._timed(captured_graphs, time_us)
        finally:
            captured_graphs.clear()
        times = {i: median(each) for i, each in samples.items()}
        in_order = [times.get(i) for i in range(len(self.launchers))]
        return AutotuneResult(fastest(samples, self._serial) if samples else 0, in_order)

    @property
    def _serial(self) -> int:
        streams = [launcher.graph.n_streams for launcher in self.launchers]
        return streams.index(min(streams))

    def _captured(self, record: Callable[[Launcher], CapturedGraph]) -> dict[int, CapturedGraph]:
        """The captures by position; the serial one first, without which none is known to win."""
        captured_graphs: dict[int, CapturedGraph] = {}
        for i in sorted(range(len(self.launchers)), key=lambda i: i != self._serial):
            try:
                captured_graphs[i] = record(self.launchers[i])
            except StateError:
                raise
            except Exception as error:
                _forget_frames(error)
        return captured_graphs

    def _timed(
        self,
        captured_graphs: Mapping[int, CapturedGraph],
        time_us: Callable[[CapturedGraph, int], float],
    ) -> Samples:
        """Round by round, after one that uploads the graphs and wakes the device's clocks."""
        n = 1 if self.launchers[0].mutates else N_REPLAYS
        samples: Samples = {i: [] for i in captured_graphs}
        for _ in range(1 + N_ROUNDS):
            for i in list(samples):
                try:
                    samples[i].append(time_us(captured_graphs[i], n))
                except StateError:
                    raise
                except Exception as error:
                    _forget_frames(error)
                    del samples[i]
        return {i: each[1:] for i, each in samples.items()}


def _forget_frames(error: BaseException) -> None:
    """Empties the frames that an error went through: they run memory of the capture."""
    chained: BaseException | None = error
    while chained is not None:
        clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


def fastest(samples: Samples, serial: int) -> int:
    """The schedule with the least median time.

    It must win `MARGIN` over the serial one in most rounds, or that one is taken.
    """
    best = min(samples, key=lambda i: median(samples[i]))
    if serial not in samples or best == serial:
        return best
    pairs = zip(samples[best], samples[serial], strict=True)
    return best if median(ours - (1 - MARGIN) * its for ours, its in pairs) <= 0 else serial
