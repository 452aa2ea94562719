"""cuDNN's fused convolutions, and cuBLAS's products with relu, compute what they stand for."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.accuracy import assert_as_accurate

pytestmark = pytest.mark.gpu

OPTIONS: dict[str, Any] = {"fold_weights": True, "policy": "nimble", "on_fallback": "error"}


class Residual(nn.Module):
    """Two residual blocks of different kernels, side by side, and a layer of their means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.one = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)])
        self.two = nn.ModuleList([nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 5, padding=2)])
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        blocks = [torch.relu(b[1](torch.relu(b[0](x))) + x) for b in (self.one, self.two)]
        return torch.relu(self.head(sum(blocks).mean((2, 3))))  # type: ignore[union-attr]


def poison() -> None:
    """Leaves numbers that are none in memory that the next results may get."""
    pieces = [
        torch.full((1 << n,), float("nan"), device="cuda") for n in range(8, 22) for _ in "ab"
    ]
    torch.cuda.synchronize()
    del pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("freeze", [True, False])
def test_they_compute_what_they_stand_for(dtype: torch.dtype, freeze: bool) -> None:
    if not torch.backends.cudnn.enabled:
        pytest.skip("cuDNN is turned off")
    model = Residual().cuda().to(dtype).eval()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    compiled = torch.compile(model, backend="nimble", options=OPTIONS | {"freeze": freeze})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 32, 32, device="cuda", dtype=dtype)
            poison()
            assert_as_accurate(model, (x,), [compiled(x)])
    (program,) = nimble_fx.programs()
    targets = Counter(str(task.target) for task in program.graph.tasks)
    assert targets["aten.cudnn_convolution_add_relu.default"] == 2
    assert targets["aten.cudnn_convolution_relu.default"] >= 2
    assert targets["aten._addmm_activation.default"] == 1


def test_numbers_that_are_none_stay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).cuda().eval()
    compiled = torch.compile(model, backend="nimble", options=OPTIONS)
    x = torch.randn(1, 3, 8, 8, device="cuda")
    x[0, 0, 4, 4] = float("nan")
    with torch.no_grad():
        assert torch.equal(compiled(x).isnan(), model(x).isnan())
