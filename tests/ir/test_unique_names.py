"""Unique names keep what is free, and number the rest."""

import pytest

from nimble_fx.ir.unique_names import unique


@pytest.mark.parametrize(
    ("names", "taken", "expected"),
    [
        (["x", "y"], set(), ["x", "y"]),
        (["x", "x", "x"], set(), ["x", "x_1", "x_2"]),
        (["x"], {"x", "x_1"}, ["x_2"]),
        (["x_1", "x", "x"], set(), ["x_1", "x", "x_2"]),
    ],
)
def test_unique_names(names: list[str], taken: set[str], expected: list[str]) -> None:
    assert unique(names, taken) == expected
