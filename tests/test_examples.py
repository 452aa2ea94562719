"""Each script in examples/ runs and prints its subject."""

import runpy
from pathlib import Path

import pytest

from tests.support.markdown import ROOT

SHOWN = {
    "own_policy": "RoundRobin(n_streams=2): 2 streams",
    "plan_for_gpu": "in 16 bits:",
    "save_and_load": "computes what the model computes",
    "schedule": "with s1:",
    "train": "(backward)",
}
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert SHOWN[script.stem] in capsys.readouterr().out
