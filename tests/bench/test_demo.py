"""The demo shows a model's results, times and module, and says which of these not to trust."""

from pathlib import Path

import pytest
import torch

from bench import demo
from bench.demo import main, print_figures, progress_bar
from nimble_fx.verify import verify_source


@pytest.mark.parametrize(("slowest", "is_said"), [(1.1, False), (9.0, True)])
def test_disturbed_times_are_said_to_be(
    slowest: float, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = {"eager": [1.0, 1.1], "nimble": [1.0, slowest]}
    with progress_bar() as stages:
        print_figures("a model", 0.0, stages, samples)
    assert ("other programs use this machine" in capsys.readouterr().out) == is_said


def shown(tmp_path: Path) -> int:
    """Runs the demo with a small model."""
    torch.compiler.reset()
    dump = str(tmp_path / "dump")
    return main(["--model", "two_tower", "--rounds", "2", "--no-write", "--dump", dump])


@pytest.mark.slow
def test_it_shows_times_a_summary_the_module_and_what_a_gpu_would_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(tmp_path) == 0
    printed = capsys.readouterr().out
    for expected in ("eager / nimble, medians", "emitted module, lines 1 to 40"):
        assert expected in printed
    _, _, module = printed.partition("the whole module: ")
    verify_source(Path(module.splitlines()[0]).read_text(encoding="utf-8"))
    if not torch.cuda.is_available():
        assert "What it would be on h100, by simulation:" in printed


@pytest.mark.slow
def test_results_that_are_not_eagers_are_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = demo.difference
    monkeypatch.setattr(demo, "difference", lambda ours, eagers: difference(ours + 1, eagers))
    assert shown(tmp_path) == 1
    assert "FAILED: nimble is not eager" in capsys.readouterr().err
