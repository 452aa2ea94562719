"""Fused kernels need a GPU that PyTorch sees; models without a prediction are listed."""

import pytest
import torch
from torch import nn

from bench.fusion import WAYS, FusionRow, main, predicted, targets
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
    form = Form(
        "",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()),
        _inputs,
        lambda n: (n, 4, 5, 5),
    )
    row = predicted("m", "M", form, 2, DEVICES["h100"])
    assert row.n_kernels == {"PyTorch's": 3, "folded": 2}
    assert row.there.keys() == row.n_kernels.keys()
    assert "it sees none" in row.error


def _inputs(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 4, 5, 5),)


def times(*pairs: tuple[float, float]) -> dict[str, There]:
    return {way: there(*pair) for way, pair in zip(WAYS, pairs, strict=False)}


def test_targets_are_of_whole_rows() -> None:
    rows = [
        FusionRow("m", "M", 1, {}, times((90, 60), (80, 60), (40, 30), (30, 15))),
        FusionRow("n", "N", 1, {}, times((90, 30), (80, 30), (60, 60), (60, 60))),
        FusionRow("o", "O", 1, {}, times((90, 30)), "Inductor's: no"),
    ]
    expected = [1, 1, 2**-0.5]  # the same, half as long and twice, a quarter and twice
    assert [target.figure for target in targets(rows)] == pytest.approx(expected)
    assert targets(rows[2:]) == []
