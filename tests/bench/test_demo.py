"""The demo warns when its times are disturbed."""

import pytest

from bench.demo import print_figures, progress_bar


@pytest.mark.parametrize(("slowest", "is_said"), [(1.1, False), (9.0, True)])
def test_disturbed_times_are_said_to_be(
    slowest: float, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = {"eager": [1.0, 1.1], "nimble": [1.0, slowest]}
    with progress_bar() as stages:
        print_figures("a model", 0.0, stages, samples)
    assert ("other programs use this machine" in capsys.readouterr().out) == is_said
