"""`--jobs`: rows of other processes equal those of this one, and none is lost silently."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._inductor import config

from bench import inference
from bench.peers import comparison
from bench.peers.side_by_side import Died
from bench.tables.rows import Row

pytestmark = pytest.mark.slow

MODELS = ("two_tower", "ensemble_8", "dlrm")
OPTIONS = ("--device", "cpu", "--rounds", "2", "--batch", "1", "--peers", "--policies", "serial")


def written(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "cpu" / "inference.json").read_text())
    return document


def test_models_that_are_compiled_side_by_side_are_rows_in_their_order(tmp_path: Path) -> None:
    models, to = MODELS[:2], ["--out", str(tmp_path)]
    assert inference.main(["--models", *models, *OPTIONS, "--jobs", "2", *to]) == 0
    document = written(tmp_path)
    assert document["options"]["jobs"] == 2
    rows = [Row.of(row) for row in document["results"]["rows"]]
    assert [row.model for row in rows] == [*models]
    for row in rows:
        assert list(row.results) == ["eager", "serial"]
        assert [len(result.samples) for result in row.results.values()] == [2, 2]
        assert row.floor is not None


def test_a_process_that_died_is_a_failed_row_and_a_model_in_the_middle_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_two(*_: object) -> Iterator[tuple[int, Died]]:
        try:
            yield 0, Died("the process died with exit code 3")
            yield 2, Died("the process died with signal 9 (SIGKILL)")
        finally:
            ended.append(True)

    ended: list[bool] = []
    monkeypatch.setattr(comparison, "side_by_side", only_two)
    to = ["--out", str(tmp_path)]
    assert inference.main(["--models", *MODELS, *OPTIONS, "--jobs", "3", *to]) == 1
    results = written(tmp_path)["results"]
    assert [(row["model"], row["results"]["eager"]["error"]) for row in results["rows"]] == [
        ("two_tower", "the process died with exit code 3"),
        ("dlrm", "the process died with signal 9 (SIGKILL)"),
    ]
    assert [title.partition(",")[0] for title in results["not_reached"]] == [
        "Ensemble of 8 small convolutional networks"
    ]
    assert ended == [True]


@pytest.mark.parametrize(("jobs", "threads"), [(1, 6), (2, 3), (4, 1), (8, 1)])
def test_processes_share_the_cpus_when_inductor_compiles(
    jobs: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(comparison, "cpu_count", lambda: 6)
    monkeypatch.setattr(comparison, "hold", lambda *_: seen.append(config.compile_threads))
    args = argparse.Namespace(
        models=["dlrm"], batch=[1], device="cpu", rounds=1, peers=[], policies=[], jobs=jobs
    )
    with config.patch(compile_threads=32):
        comparison._hold_apart(args, False, 0, lambda: None)
    assert seen == [threads]
