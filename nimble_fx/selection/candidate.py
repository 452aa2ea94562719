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
        policy: its name, such as "serial", "nimble", "nimble, 4 streams" or "critical-path".
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


def candidate_table(candidates: Sequence[Candidate], on_gpu: bool) -> list[str]:
    """The lines of a table: policy, streams, predicted and measured time, memory, chosen.

    Args:
        candidates: the rows.
        on_gpu: whether they run on a GPU; if not, there is no column for a CUDA graph's memory.
    """
    columns = {
        "policy": [each.policy for each in candidates],
        "streams": [str(each.n_streams) for each in candidates],
        "predicted": [_microseconds(each.predicted_us) for each in candidates],
        "measured": [_microseconds(each.measured_us) for each in candidates],
        "predicted memory": [f"{each.peak_bytes / 2**20:.1f} MiB" for each in candidates],
        "": ["runs" if each.chosen else "" for each in candidates],
    }
    if not on_gpu:
        del columns["predicted memory"]
    return aligned([list(columns), *zip(*columns.values(), strict=True)])


def _microseconds(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f} us"
