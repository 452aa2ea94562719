"""Images that are made of single pixels have the promised memory format."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule

from nimble_fx.rewrites.formats_of_views import keep_formats_of_views
from nimble_fx.rewrites.promised_strides import keep_promised_strides
from nimble_fx.torch_internals.kernels.upsampling import upsampling_as_one_operator
from tests.support.inference_graphs import inference_graph
from tests.support.promised_types import run_with_formats

LAST: Any = torch.channels_last

ON_PIXELS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "add": lambda x: x + x.sum(1, keepdim=True),
    "convolution": lambda x: F.conv2d(x, torch.ones(4, 4, 1, 1) / 4),
    "convolution, channels last": lambda x: F.conv2d(
        x, (torch.ones(4, 4, 1, 1) / 4).to(memory_format=LAST)
    ),
    "norm": lambda x: F.group_norm(x, 2),
    "view": lambda x: x.flatten(1)[:, :, None, None],
    "channels last": lambda x: x.to(memory_format=LAST),
    "pool": lambda x: F.max_pool2d(x, 1),
}

TO_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: F.interpolate(x, size=(4, 6)),
    "bilinear": lambda x: F.interpolate(x, size=(4, 1), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(1, 6), mode="bicubic"),
    "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 0), mode="replicate"),
    "transposed convolution": lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 2, 2)),
    "convolution": lambda x: F.conv2d(x, torch.ones(4, 4, 1, 1), padding=1),
}


class Pooled(nn.Module):
    """A pooled image, operators on its pixel, and images made of it."""

    def __init__(self, on_pixels: list[str], to_images: list[str]) -> None:
        super().__init__()
        self.on_pixels, self.to_images = on_pixels, to_images

    def forward(self, x: Tensor) -> list[Tensor]:
        y = F.adaptive_avg_pool2d(x, 1)
        for name in self.on_pixels:
            y = ON_PIXELS[name](y)
        images = [TO_IMAGES[name](y) for name in self.to_images]
        return [x * y, *(each.permute(0, 2, 3, 1).reshape(-1, each.shape[1]) for each in images)]


def rewritten(gm: GraphModule) -> GraphModule:
    return keep_promised_strides(keep_formats_of_views(gm), lambda device: device)


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(sorted(ON_PIXELS)), max_size=4),
    st.lists(st.sampled_from(sorted(TO_IMAGES)), min_size=1, max_size=2),
    st.integers(1, 2),
)
def test_images_made_of_single_pixels_have_the_promised_format(
    on_pixels: list[str], to_images: list[str], n: int
) -> None:
    model = Pooled(on_pixels, to_images)
    x = torch.randn(n, 4, 4, 6).to(memory_format=LAST)
    with upsampling_as_one_operator():
        graph = inference_graph(model, x, rewrite=rewritten)
    results, differing = run_with_formats(graph.gm, *graph.arguments)
    torch.testing.assert_close(results, model(x))
    assert differing == []


@pytest.mark.parametrize("on_pixels", [["convolution", "relu"], ["convolution", "relu", "add"]])
@pytest.mark.parametrize("options", [{}, {"fold_weights": False}, {"device": "virtual"}])
def test_a_pooled_branch_is_classified_by_pixel_as_in_eager(
    options: dict[str, Any], on_pixels: list[str]
) -> None:
    model = Pooled(on_pixels, ["bilinear"])
    x = torch.randn(2, 4, 6, 6).to(memory_format=LAST)
    options = options | {"on_fallback": "error"}
    with torch.no_grad():
        found = torch.compile(model, backend="nimble", options=options)(x)
    torch.testing.assert_close(found, model(x))


def test_single_pixels_of_which_no_image_is_made_are_left_alone() -> None:
    """Those of a squeeze-and-excitation block, whose many views would take time in each call."""
    scale = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Sigmoid()
    )

    class Excited(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = x * scale(x)
            return result

    x = torch.randn(2, 4, 6, 6).to(memory_format=LAST)
    graph = inference_graph(Excited(), x)
    nodes = list(graph.gm.graph.nodes)
    assert list(rewritten(graph.gm).graph.nodes) == nodes


def test_elementwise_operators_read_single_pixels_as_they_are() -> None:
    graph = inference_graph(
        Pooled(["convolution", "relu", "relu"], ["bilinear"]),
        torch.randn(2, 4, 6, 6).to(memory_format=LAST),
        rewrite=rewritten,
    )
    (relu,) = [node for node in graph.gm.graph.nodes if node.name == "relu"]
    assert "relu_1" in {user.name for user in relu.users}
