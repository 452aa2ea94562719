"""What is measured and predicted is of the same program; reasons follow from costs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from torch import nn

from bench.command_line.record import plain
from bench.measuring.capture_backend import KeptPrograms
from bench.simulation import (
    CPU_LIMIT,
    GPU_LIMIT,
    Here,
    SimulationRow,
    There,
    main,
    predicted_for,
    reason,
    targets,
)
from bench.tables.published import Comparison, Published, kernels, mean_error, mean_ratio
from nimble_fx.cost import Cost
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES
from nimble_fx.ir.task_graph import TaskGraph, target_name
from tests.strategies import task_graphs
from tests.support.cost_graphs import traced
from tests.support.models import Branchy

HERE = Here(samples=(2.0, 1.0, 4.0), predicted=1.5, n_tasks=5, n_guessed=0)
TIMES = {"serial": 6.0, "nimble": 4.0, "nimble, 2 streams": 3.0, "auto": 3.0}
THERE = There("x", TIMES, 2.0, "why")


def test_an_error_is_over_the_median_and_a_gain_is_the_best_ones() -> None:
    assert HERE.error == -0.25
    assert (THERE.best, THERE.gain) == ("nimble, 2 streams", 2.0)


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
    here, published, worst = targets(rows, compared, "cpu")
    assert (worst.figure, worst.limit) == (0.5, 1.0)
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


@given(task_graphs())
def test_one_stream_takes_the_sum_and_none_goes_below_the_bound(graph: TaskGraph) -> None:
    device = DEVICES["a100"]
    there = predicted_for(device, [graph, graph])
    total = sum(cost.us for cost in Roofline(device)(graph).values())
    assert there.schedules["serial"] == pytest.approx(2 * total)
    assert min(there.schedules.values()) >= there.bound * (1 - 1e-9)
    assert there.schedules["auto"] <= there.schedules["serial"]
    assert {"auto", "serial"} <= set(there.schedules)


@pytest.mark.parametrize(
    ("share", "bandwidth", "says"),
    [
        (1.0, 0.0, "100% of its processors"),
        (0.0, 0.95, "95% of its memory"),
        (0.1, 0.0, "up to 2 at once; limited by the path to 1.7 times"),
        (0.7, 0.2, "limited by the processors to 1.4 times"),
    ],
)
def test_the_reason_is_what_limits_most(share: float, bandwidth: float, says: str) -> None:
    graph = traced(Branchy(), torch.randn(2, 4))
    cost = Cost(1.0, 1.0, 1.0, share, bandwidth)
    assert says in reason([graph], [{task.name: cost for task in graph.launching}])


def test_a_chain_is_called_one_and_nothing_is_said_of_nothing() -> None:
    graph = traced(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.randn(3))
    assert "100% of the tasks' time" in reason([graph], [Roofline(DEVICES["h100"])(graph)])
    assert reason([], []) == "nothing runs"


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
