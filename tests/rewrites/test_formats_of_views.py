"""After the rewrite, views of images have the memory format of their fake tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from nimble_fx.rewrites.formats_of_views import keep_formats_of_views
from tests.support.inference_graphs import inference_graph
from tests.support.promised_types import run_with_formats

IMAGES = ((1, 4, 2, 3), (1, 2, 6, 2), (2, 4, 3, 1), (1, 2, 2, 3, 2))
SHAPES = (*IMAGES, (1, 6, 4), (1, 24), (4, 6), (4, 1, 6), (4, 6, 1))
AFTER: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    torch.relu,
    lambda x: x + x.sum(),
    lambda x: x.transpose(-1, -2) * 2,
)


class Program(nn.Module):
    """Views of an argument in any order of dimensions, and elementwise operators."""

    def __init__(self, steps: list[tuple[tuple[int, ...], Callable[[Tensor], Tensor]]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> list[Tensor]:
        results = [x]
        for shape, after in self.steps:
            results.append(after(results[-1].reshape(shape)))
        return results[1:]


@settings(max_examples=200)
@given(
    st.permutations(range(3)),
    st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(AFTER)), min_size=1, max_size=3),
)
def test_any_views_have_the_formats_of_their_fake_tensors(
    order: list[int], steps: list[tuple[tuple[int, ...], Callable[[Tensor], Tensor]]]
) -> None:
    x, model = torch.randn(1, 4, 6).permute(order), Program(steps)
    graph = inference_graph(model, x)
    expected = graph.gm(*graph.arguments)
    results, differing = run_with_formats(keep_formats_of_views(graph.gm), *graph.arguments)
    assert all(map(torch.equal, results, expected))
    assert differing == []


def attended(x: Tensor) -> Tensor:
    """The result of an attention, seen as an image again, as in latent diffusion's decoders."""
    return x.transpose(1, 2).reshape(1, 32, 8, 8)


def test_a_view_of_one_image_has_another_format_before() -> None:
    """Else there would be nothing to rewrite: PyTorch's kernels and shape functions would agree."""
    graph = inference_graph(Program([((1, 32, 8, 8), torch.relu)]), torch.randn(1, 32, 64))
    assert run_with_formats(graph.gm, *graph.arguments)[1] == []
    graph = inference_graph(
        Program([((1, 32, 8, 8), torch.relu)]), torch.randn(1, 64, 32).transpose(1, 2)
    )
    assert run_with_formats(graph.gm, *graph.arguments)[1] != []


@pytest.mark.parametrize("n_images", [1, 2])
def test_what_needs_no_other_strides_is_left_alone(n_images: int) -> None:
    x = torch.randn(n_images, 64, 32)
    x = x if n_images == 1 else x.transpose(1, 2)
    graph = inference_graph(Program([((n_images, 32, 8, 8), torch.relu)]), x)
    nodes = list(graph.gm.graph.nodes)
    assert list(keep_formats_of_views(graph.gm).graph.nodes) == nodes


class Block(nn.Module):
    """A normalization, which PyTorch refuses if it gets another format than it expects."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.convolution = nn.GroupNorm(4, 32), nn.Conv2d(32, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.convolution(F.silu(self.norm(attended(x) + 1)))
        return y.permute(0, 2, 3, 1).reshape(64, 8)


@pytest.mark.parametrize("options", [{}, {"device": "virtual"}, {"kernels": "inductor"}])
@pytest.mark.parametrize("training", [False, True])
def test_one_image_after_an_attention_is_normalized_as_in_eager(
    training: bool, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(1, 64, 32)
    compiled = torch.compile(model, backend="nimble", options=options | {"on_fallback": "error"})
    with torch.set_grad_enabled(training):
        y = compiled(x)
    torch.testing.assert_close(y, model(x))
    if training:
        weights = list(model.parameters())
        ours, theirs = (torch.autograd.grad(each.square().sum(), weights) for each in (y, model(x)))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_so_are_images_of_any_size() -> None:
    def program(x: Tensor) -> Tensor:
        y = F.group_norm(x.transpose(1, 2).reshape(1, 8, x.shape[1] // 2, 2), 2)
        return y.permute(0, 2, 3, 1).reshape(-1, 8)

    compiled = torch.compile(program, backend="nimble", dynamic=True)
    with torch.no_grad():
        for n in (8, 12, 6):
            x = torch.randn(1, n, 8)
            torch.testing.assert_close(compiled(x), program(x))
    assert len(nimble_fx.programs()) == 2  # the first has 8 rows and 8 columns, which are one size
