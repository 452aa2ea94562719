"""The table of candidates shows what is known of each, and which one runs."""

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.selection.candidate import Candidate, candidate_table

CANDIDATES = st.builds(
    Candidate,
    policy=st.sampled_from(["serial", "nimble", "nimble, 2 streams", "critical-path"]),
    n_streams=st.integers(1, 32),
    predicted_us=st.floats(0, 1e6),
    measured_us=st.none() | st.floats(0, 1e6),
    peak_bytes=st.integers(0, 2**40),
    chosen=st.booleans(),
)


@given(st.lists(CANDIDATES, min_size=1, max_size=6), st.booleans())
def test_each_candidate_has_a_line_with_its_figures(
    candidates: list[Candidate], on_gpu: bool
) -> None:
    header, *lines = candidate_table(candidates, on_gpu)
    columns = [header.index(name) for name in ("policy", "streams", "predicted", "measured")]
    for line, each in zip(lines, candidates, strict=True):
        cells = [line[start:].split("  ")[0] for start in columns]
        measured = "-" if each.measured_us is None else f"{each.measured_us:.1f} us"
        predicted = f"{each.predicted_us:.1f} us"
        assert cells == [each.policy, str(each.n_streams), predicted, measured]
        assert line.endswith("runs") == each.chosen
        assert (f" {each.peak_bytes / 2**20:.1f} MiB" in line) == on_gpu
