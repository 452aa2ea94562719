"""Autotuning: times captures of several schedules of a program and selects the fastest."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from traceback import clear_frames

from nimble_fx.errors import StateError, one_line
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.samples import Samples, select_winner

_log = logging.getLogger(__name__)

N_ROUNDS = 9
"""Rounds, each with a sample of every schedule, so that noise affects all schedules alike."""

N_REPLAYS = 10
"""Replays in a sample; one if replays change the model's state, which is restored after each."""

Times = Sequence[float | None]
"""The median time of a replay of each schedule in microseconds; None if it was not timed."""


@dataclass(frozen=True)
class AutotuneResult:
    """The result of autotuning.

    Attributes:
        winner: the position of the schedule that runs from now on.
        times: the measured time of each schedule.
    """

    winner: int
    times: Times


@dataclass(frozen=True)
class Autotuner:
    """Times the schedules of one program when it is first captured.

    Attributes:
        launchers: one for each schedule; one of the schedules has one stream.
        on_result: called with the result.

    Cost: a capture of each schedule, all in memory at the same time, and up to
    `(N_ROUNDS + 1) * N_REPLAYS` replays of each.
    """

    launchers: Sequence[Launcher]
    on_result: Callable[[AutotuneResult], None]

    def run(
        self,
        capture: Callable[[Launcher], CapturedGraph],
        time_us: Callable[[CapturedGraph, int], float],
    ) -> AutotuneResult | None:
        """Times the schedules; None if none could be captured.

        A schedule that fails, such as for lack of memory, is left out; if all fail, the capture
        that follows raises the error. All captures are freed at the end.

        Args:
            capture: captures a schedule in a memory pool of its own.
            time_us: the mean time in microseconds of so many replays in a row.

        Raises:
            StateError: the model's state could not be restored.
        """
        captured_graphs = self._captured(capture)
        if not captured_graphs:
            return None
        try:
            samples = self._timed(captured_graphs, time_us)
        finally:
            captured_graphs.clear()
        times = {i: median(each) for i, each in samples.items()}
        in_order = [times.get(i) for i in range(len(self.launchers))]
        return AutotuneResult(select_winner(samples, self._serial) if samples else 0, in_order)

    @property
    def _serial(self) -> int:
        streams = [launcher.graph.n_streams for launcher in self.launchers]
        return streams.index(min(streams))

    def _captured(self, capture: Callable[[Launcher], CapturedGraph]) -> dict[int, CapturedGraph]:
        """The captures by position; the serial one first, as it is the baseline of the others."""
        captured_graphs: dict[int, CapturedGraph] = {}
        for i in sorted(range(len(self.launchers)), key=lambda i: i != self._serial):
            try:
                captured_graphs[i] = capture(self.launchers[i])
            except StateError:
                raise
            except Exception as error:
                self._leave_out(i, error)
        return captured_graphs

    def _timed(
        self,
        captured_graphs: Mapping[int, CapturedGraph],
        time_us: Callable[[CapturedGraph, int], float],
    ) -> Samples:
        """The samples, without a first round, which uploads graphs and raises clock rates."""
        n = 1 if self.launchers[0].mutates else N_REPLAYS
        samples: Samples = {i: [] for i in captured_graphs}
        for _ in range(1 + N_ROUNDS):
            for i in list(samples):
                try:
                    samples[i].append(time_us(captured_graphs[i], n))
                except StateError:
                    raise
                except Exception as error:
                    self._leave_out(i, error)
                    del samples[i]
        return {i: each[1:] for i, each in samples.items()}

    def _leave_out(self, i: int, error: BaseException) -> None:
        """Logs why a schedule takes no part, and frees what the error keeps alive."""
        graph = self.launchers[i].graph
        _log.info("%s on %d streams is left out: %s", graph.name, graph.n_streams, one_line(error))
        _clear_frames(error)


def _clear_frames(error: BaseException) -> None:
    """Clears the frames of an error's traceback: their locals keep memory of the capture alive."""
    chained: BaseException | None = error
    while chained is not None:
        clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__
