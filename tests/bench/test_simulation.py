"""Measured and predicted times belong to the same program."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.command_line.record import plain
from bench.measuring.capture_backend import KeptPrograms
from bench.measuring.predicted import There
from bench.simulation import (
    CPU_LIMIT,
    GPU_LIMIT,
    Here,
    SimulationRow,
    main,
    targets,
)
from bench.tables.published import Comparison, Published, kernels, mean_error, mean_ratio
from nimble_fx.devices.specs import DEVICES
from nimble_fx.ir.task_graph import target_name
from tests.support.cost_graphs import traced

HERE = Here(samples=(2.0, 1.0, 4.0), predicted=1.5, n_tasks=5, n_guessed=0)
THERE = There("x", {"serial": 6.0, "nimble": 3.0, "auto": 3.0}, 2.0, "why")


def test_an_error_is_over_the_median() -> None:
    assert HERE.error == -0.25


def test_a_row_is_read_as_it_was_written() -> None:
    row = SimulationRow("m", "M", 1, {"serial": HERE}, THERE)
    read = SimulationRow.of(json.loads(json.dumps(plain(row))))
    assert read.there == THERE
    assert read.here["serial"].error == HERE.error


def test_targets_are_medians_of_absolute_errors() -> None:
    errors = (0.3, -0.2, 0.05)
    rows = [
        SimulationRow("m", "M", 1, {"serial": replace(HERE, predicted=2 * (1 + e))}, THERE)
        for e in errors
    ]
    compared = [Comparison("m", "x", "s", 1.0, 2.0), Comparison("m", "x", "s", 1.0, 0.5)]
    here, published = targets(rows, compared, "cpu")
    assert here.figure == pytest.approx(0.2)
    assert here.limit == CPU_LIMIT
    assert published.figure == mean_error(compared) == 0.75
    assert mean_ratio(compared) == pytest.approx(1.0)
    assert targets(rows, [], "cuda:0")[0].limit == GPU_LIMIT


def test_a_kept_program_runs_again_with_what_it_was_given() -> None:
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    kept = KeptPrograms("serial")
    compiled = torch.compile(model, backend=kept)
    with torch.no_grad():
        compiled(x)
        assert model.num_batches_tracked == 1
        kept.again()
    assert model.num_batches_tracked == 2
    assert len(kept.graphs) == 1


def test_what_is_fused_into_a_convolution_is_no_kernel_of_its_own() -> None:
    model = nn.Sequential(
        nn.ReLU(), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()
    ).eval()
    graph = traced(model, torch.randn(1, 3, 4, 4))
    assert kernels(graph, fused=False) == list(graph.launching)
    names = [target_name(task.target).split(".")[1] for task in kernels(graph, fused=True)]
    assert names == ["relu", "convolution", "max_pool2d_with_indices", "relu_"]


def test_the_command_measures_predicts_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = Published("sparse_autoencoder", DEVICES["a100"], 1.0, "nowhere")
    monkeypatch.setattr("bench.tables.published.PUBLISHED", (published,))
    arguments = ["--models", "sparse_autoencoder", "--device", "cpu", "--rounds", "1"]
    assert main([*arguments, "--gpu", "v100", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "cpu" / "simulation.json").read_text())
    (row,) = map(SimulationRow.of, document["results"]["rows"])
    here = row.here["serial"]
    assert len(here.samples) == 2
    assert here.predicted > 0
    assert here.n_guessed == 0
    assert row.there.device == "v100"
    assert len(document["results"]["published"]) == 1
    assert "median error of serial" in capsys.readouterr().out


def test_an_unknown_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--gpu", "h10"])
    assert "did you mean 'h100'" in capsys.readouterr().err
