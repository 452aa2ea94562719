"""cuDNN's fused convolutions, and cuBLAS's products with relu, compute what they replace."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.torch_internals.kernels.cudnn import CONVOLUTION_ADD_RELU, CONVOLUTION_RELU
from tests.support.accuracy import assert_as_accurate

pytestmark = pytest.mark.gpu

FORMATS = [torch.contiguous_format, torch.channels_last]

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
    options = OPTIONS | {"freeze": freeze, "assume_finite": True}
    compiled = torch.compile(model, backend="nimble", options=options)
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


@pytest.mark.parametrize("n_images", [0, 2])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("n_channels", [(4, 6), (1, 6), (4, 1)])
@pytest.mark.parametrize("of_x", FORMATS)
@pytest.mark.parametrize("of_weight", FORMATS)
def test_results_have_the_strides_that_they_say_without_data(
    n_images: int,
    size: int,
    n_channels: tuple[int, int],
    of_x: torch.memory_format,
    of_weight: torch.memory_format,
) -> None:
    if n_images and not torch.backends.cudnn.enabled:
        pytest.skip("cuDNN is turned off")
    n_in, n_out = n_channels
    x = torch.randn(n_images, n_in, 6, 6).cuda().clone(memory_format=of_x)
    weight = torch.randn(n_out, n_in, size, size).cuda().clone(memory_format=of_weight)
    bias, window = torch.randn(n_out).cuda(), ([1, 1], [0, 0], [1, 1], 1)
    result = CONVOLUTION_RELU(x, weight, bias, *window)
    fake_x, fake_weight, fake_bias, other = (y.to("meta") for y in (x, weight, bias, result))
    assert CONVOLUTION_RELU(fake_x, fake_weight, fake_bias, *window).stride() == result.stride()
    result = CONVOLUTION_ADD_RELU(x, weight, result, 1.0, bias, *window)
    fake = CONVOLUTION_ADD_RELU(fake_x, fake_weight, other, 1.0, fake_bias, *window)
    assert fake.stride() == result.stride()


def test_numbers_that_are_none_stay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).cuda().eval()
    compiled = torch.compile(model, backend="nimble", options=OPTIONS)
    x = torch.randn(1, 3, 8, 8, device="cuda")
    x[0, 0, 4, 4] = float("nan")
    with torch.no_grad():
        assert torch.equal(compiled(x).isnan(), model(x).isnan())
