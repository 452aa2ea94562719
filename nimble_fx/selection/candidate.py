"""A candidate schedule with its predicted and measured cost, and the table of candidates."""

from collections.abc import Sequence
from dataclasses import dataclass

from nimble_fx.ir.display import aligned

MIN_GAIN = 0.01
"""The least gain over one stream, as a part of its time, that a schedule on more must have."""


@dataclass(frozen=True)
class Candidate:
    """A schedule that a program could have, with its costs.

    Attributes:
        policy: its name: "serial", "nimble", "nimble, 4 streams", "critical-path".
        n_streams: how many streams it has.
        predicted_us: the simulated time of a replay in microseconds.
        measured_us: the measured time of a replay on the device; None if it was not timed.
        peak_bytes: the device memory that its CUDA graph would own by the allocator's rules, with
            a workspace of cuBLAS for each stream that has matrix products.
        chosen: whether it is the one that runs.
    """

    policy: str
    n_streams: int
    predicted_us: float
    measured_us: float | None
    peak_bytes: int
    chosen: bool = False


def candidate_table(candidates: Sequence[Candidate]) -> list[str]:
    """The lines of a table: policy, streams, predicted and measured time, peak memory, chosen."""
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
    return aligned(rows)
