"""A schedule that is broken by hand is refused, with the race, and computes wrong results."""

import pytest

from bench.mutation_demo import EDITS, compiled_cell, doubt

SAID = {
    "late_wait": ("race on storage addmm_2: mul (stream 0", "mul needs to wait for sigmoid"),
    "early_free": (
        "tanh (in addmm) is freed after addmm_2 (stream 1",
        "tanh needs to be freed later",
    ),
    "other_stream": ("race on storage addmm_1: relu (stream 1", "relu needs to wait for addmm_1"),
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_each_edit_is_refused_by_name_and_gives_a_wrong_result(edit: object) -> None:
    one = doubt(edit, *compiled_cell())  # type: ignore[arg-type]
    race, cure = SAID[edit.__name__]  # type: ignore[attr-defined]
    assert one.lines
    assert str(one.refused).startswith(race)
    assert cure in str(one.refused)
    assert 0 < one.n_wrong < 100
