"""What a program's schedules take: the table that one is chosen from."""

from collections.abc import Sequence
from dataclasses import dataclass

from nimble_fx.ir.display import table

MIN_GAIN = 0.01
"""What a schedule must win over one stream, of that one's time."""


@dataclass(frozen=True)
class Candidate:
    """A schedule that a program could have.

    Attributes:
        policy: what it is called: "serial", "nimble", "nimble, 4 streams", "critical-path".
        n_streams: how many streams it has.
        predicted_us: what a replay takes by simulation, in microseconds.
        measured_us: what one took on the device; None where none was timed.
        peak_bytes: what the graph would own of the device's memory, without the libraries'
            workspaces, by the allocator's rules.
        chosen: whether it is the one that runs.
    """

    policy: str
    n_streams: int
    predicted_us: float
    measured_us: float | None
    peak_bytes: int
    chosen: bool = False


def candidate_table(candidates: Sequence[Candidate]) -> list[str]:
    """The table as lines: policy, streams, predicted and measured time, peak memory, which runs."""
    rows: list[Sequence[str]] = [("policy", "streams", "predicted", "measured", "peak memory", "")]
    rows += [
        (
            each.policy,
            str(each.n_streams),
            f"{each.predicted_us:.1f} us",
            "-" if each.measured_us is None else f"{each.measured_us:.1f} us",
            f"{each.peak_bytes / 2**20:.1f} MiB",
            "runs" if each.chosen else "",
        )
        for each in candidates
    ]
    return table(rows)
