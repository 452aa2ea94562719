"""Which schedule of a program is the fastest on its device, found by timing captures."""

from collections.abc import Callable, Sequence
from statistics import median

from nimble_fx.candidates import MARGIN
from nimble_fx.errors import StateError
from nimble_fx.launch import Launcher
from nimble_fx.recording import Recording

N_ROUNDS = 9
"""Samples of each schedule, taken in turn, so that what slows the device down meets all of them."""

N_REPLAYS = 10
"""Replays in a sample; one where replays change the model's state, which is then put back."""

Times = Sequence[float | None]
"""For each schedule the median of its replays in microseconds; None if it was not captured."""


class Trial:
    """The schedules of one program, to be timed when it is first captured.

    Cost: for each schedule a capture, whose memory they hold at the same time, and up to
    `(N_ROUNDS + 1) * N_REPLAYS` replays.
    """

    def __init__(
        self, launchers: Sequence[Launcher], decided: Callable[[int, Times], None]
    ) -> None:
        """A trial of schedules that do the same.

        Args:
            launchers: of each schedule, one of them on one stream.
            decided: is told the position of the winner, and the times.
        """
        self._launchers, self._decided = launchers, decided
        streams = [launcher.graph.n_streams for launcher in launchers]
        self._serial = streams.index(min(streams))

    def hold(
        self, record: Callable[[Launcher], Recording], time_us: Callable[[Recording, int], float]
    ) -> Launcher:
        """The schedule that is fastest, by at least `MARGIN` if it is not the serial one.

        Args:
            record: captures a schedule, in memory of its own; all captures are thrown away.
            time_us: microseconds of a replay, the mean of so many in a row.

        Raises:
            Exception: what the first schedule's capture raised, if none could be captured.
        """
        recordings, errors = self._captured(record)
        if not recordings:
            raise errors[0]
        n = 1 if self._launchers[0].mutates else N_REPLAYS
        for recording in recordings.values():
            time_us(recording, n)  # the first replays upload the graph, and wake the clocks
        samples: dict[int, list[float]] = {i: [] for i in recordings}
        for _ in range(N_ROUNDS):
            for i, recording in recordings.items():
                samples[i].append(time_us(recording, n))
        winner = fastest(samples, self._serial)
        times = {i: median(each) for i, each in samples.items()}
        self._decided(winner, [times.get(i) for i in range(len(self._launchers))])
        return self._launchers[winner]

    def _captured(
        self, record: Callable[[Launcher], Recording]
    ) -> tuple[dict[int, Recording], list[Exception]]:
        """The captures by position, and what the others raised."""
        recordings: dict[int, Recording] = {}
        errors: list[Exception] = []
        for i, launcher in enumerate(self._launchers):
            try:
                recordings[i] = record(launcher)
            except StateError:
                raise
            except Exception as error:  # no memory for one more, say: another may still win
                errors.append(error)
        return recordings, errors


def fastest(samples: dict[int, list[float]], serial: int) -> int:
    """The schedule with the least median time.

    It must win `MARGIN` over the serial one in the median of their rounds, or that one is taken.
    """
    best = min(samples, key=lambda i: median(samples[i]))
    if serial not in samples or best == serial:
        return best
    ratios = [ours / its for ours, its in zip(samples[best], samples[serial], strict=True)]
    return best if median(ratios) <= 1 - MARGIN else serial
