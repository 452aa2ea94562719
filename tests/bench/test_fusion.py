"""Predictions with fused kernels need a GPU that PyTorch sees, and never hide what has none."""

import pytest
import torch
from torch import nn

from bench.fusion import FusionRow, main, predicted, targets
from bench.measuring.predicted import There
from bench.models.model import Form
from nimble_fx.devices.cuda import Cuda
from nimble_fx.devices.specs import DEVICES


def there(serial: float, auto: float) -> There:
    return There("x", {"serial": serial, "auto": auto}, 1.0, "why")


def test_without_a_gpu_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--models", "two_tower"]) == 1
    assert "PyTorch sees no GPU" in capsys.readouterr().err


def test_a_model_without_fused_kernels_keeps_its_other_prediction_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cuda, "hardware", None)
    form = Form("", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), _inputs, lambda n: (n, 4))
    row = predicted("m", "M", form, 2, DEVICES["h100"])
    assert (row.n_kernels, set(row.there)) == ({"aten": 2}, {"aten"})
    assert "it sees none" in row.error


def _inputs(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 4),)


def test_targets_are_of_whole_rows() -> None:
    rows = [
        FusionRow("m", "M", 1, {}, {"aten": there(90, 60), "inductor": there(40, 30)}),
        FusionRow("n", "N", 1, {}, {"aten": there(90, 30), "inductor": there(60, 60)}),
        FusionRow("o", "O", 1, {}, {"aten": there(90, 30)}, "inductor: no"),
    ]
    slowest, fused = targets(rows)
    assert slowest.figure == 1
    assert fused.figure == pytest.approx(1)  # half as long, and twice
    assert targets(rows[2:]) == []
