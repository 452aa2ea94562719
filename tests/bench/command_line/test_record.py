"""Targets are met according to their limits, and results contain no paths."""

import argparse
import json
from pathlib import Path

import pytest

from bench.command_line.record import Target, finish


@pytest.mark.parametrize(
    ("figure", "strict", "met"),
    [(0.9, False, True), (1, False, True), (1, True, False), (2, True, False)],
)
def test_a_target_is_met_up_to_its_limit(figure: float, strict: bool, met: bool) -> None:
    target = Target("figure", figure, 1, strict)
    assert target.met == met
    assert str(target).endswith(": met" if met else "NOT met")


def test_a_result_is_written_whole_with_what_it_depends_on(tmp_path: Path) -> None:
    args = argparse.Namespace(out=tmp_path, no_write=False, rounds=3, device="cpu")
    finish("trial", args, {"seconds": 0.123456789}, [Target("seconds", 0.1, 1)])
    text = (tmp_path / "cpu" / "trial.json").read_text()
    result = json.loads(text)
    assert result["results"] == {"seconds": 0.123457}
    assert result["options"] == {"rounds": 3, "device": "cpu"}
    assert result["targets"][0]["met"]
    assert {"torch", "python", "commit", "n_cpus"} <= result["environment"].keys()
    assert str(tmp_path) not in text
