"""Assignments of one value through a mask: eager's bits, without counting the mask."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from nimble_fx.rewrites.fill_masked import fill_masked
from nimble_fx.tracing.constant_folding import fold_constants
from tests.support.bits import assert_same_bits
from tests.support.inference_graphs import InferenceGraph, inference_graph

aten = torch.ops.aten
COUNT = {aten.index_put.default, aten.index_put_.default, aten.masked_fill.Tensor}

SHAPES = ((2,), (2, 3), (1, 3), (2, 3, 4), (3, 1, 2))
NUMBERS = {
    torch.float32: (-1.5, 0.0, -0.0, float("inf"), float("nan"), 1e-45),
    torch.float16: (0.1, float("-inf")),
    torch.int64: (-7, 2**62 + 1),
    torch.bool: (True, False),
    torch.complex64: (1.5 - 2j,),
}


class Fill(nn.Module):
    """Fills a part of what it computes.

    Args:
        n_before: the number of dimensions before the indexed ones.
        order: of the dimensions in memory.
        number: what it fills with; None for a computed value.
        n_rest: the number of the computed value's dimensions that are the tensor's last ones.
        n_ones: the number of those of size 1 before them.
    """

    def __init__(
        self, n_before: int, order: list[int], number: complex | None, n_rest: int, n_ones: int
    ) -> None:
        super().__init__()
        self.n_before, self.order, self.number = n_before, order, number
        self.n_rest, self.n_ones = n_rest, n_ones

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = x.clone().permute(self.order)
        row = y[(0,) * (y.dim() - self.n_rest)].clone()
        if self.n_rest > 1:  # in another order in memory than the tensor
            row = row.mT.contiguous().mT
        value = row[(None,) * self.n_ones] if self.number is None else self.number
        place: Any = (*(slice(None),) * self.n_before, mask)
        y[place] = value  # type: ignore[assignment]  # a complex number is one
        return y


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), st.sampled_from(SHAPES), st.sampled_from(list(NUMBERS)), st.integers(0, 2**20))
def test_any_mask_of_any_dimensions_fills_eagers_bits(
    data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    order = data.draw(st.permutations(range(len(shape))))
    first = data.draw(st.integers(0, len(shape) - 1))
    last = data.draw(st.integers(first + 1, len(shape)))
    number = data.draw(st.none() | st.sampled_from(NUMBERS[dtype]))
    n_rest = data.draw(st.integers(0, len(shape) - last))
    n_ones = data.draw(st.integers(0, first + 1 + len(shape) - last - n_rest))
    x, model = torch.randn(shape).to(dtype), Fill(first, order, number, n_rest, n_ones)
    indexed = [shape[i] for i in order][first:last]
    in_memory = data.draw(st.permutations(range(last - first)))
    mask = torch.rand([indexed[i] for i in in_memory]) > 0.5
    mask = mask.permute([in_memory.index(i) for i in range(last - first)])
    graph = inference_graph(model, x, mask)
    with torch.no_grad():
        (traced,) = graph.gm(*graph.arguments)
        (ours,) = filled(graph)(*graph.arguments)
        # not eager's: since 2.15, PyTorch traces others
        assert strides_that_matter(ours) == strides_that_matter(traced)
        assert_same_bits(ours, model(x, mask), strides=False)
    assert COUNT.isdisjoint(node.target for node in graph.gm.graph.nodes), graph.gm.graph


def strides_that_matter(tensor: Tensor) -> list[int]:
    """The strides of dimensions in which there are several elements."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def filled(graph: InferenceGraph) -> torch.fx.GraphModule:
    """The graph after the rewrite, as the compiler applies it."""
    place: Callable[[torch.device], torch.device] = lambda device: device  # noqa: E731
    return fill_masked(fold_constants(graph.gm, place), place)


class Call(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> Any:
        return self.function(*arguments)


def several_values(x: Tensor, mask: Tensor) -> Tensor:
    return aten.index_put(x, [mask], torch.arange(3.0))


def sum_of_all(x: Tensor, mask: Tensor) -> Tensor:
    return aten.index_put(x, [mask], torch.tensor(2.0), True)


def value_of_another_dtype(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask, x.mean().double())


def mask_and_places(x: Tensor, mask: Tensor) -> Tensor:
    return aten.index_put(x, [mask[0], torch.tensor([0])], torch.tensor(2.0))


def places(x: Tensor, mask: Tensor) -> Tensor:
    return aten.index_put(x, [mask.sum(1)], torch.tensor(2.0))


STAY = [several_values, sum_of_all, value_of_another_dtype, mask_and_places, places]


@pytest.mark.parametrize("function", STAY, ids=lambda function: function.__name__)
def test_other_assignments_stay_as_they_are(function: Callable[..., Tensor]) -> None:
    x, mask = torch.randn(3, 3), torch.eye(3) > 0
    graph = inference_graph(Call(function), x, mask)
    gm = filled(graph)
    assert not COUNT.isdisjoint(node.target for node in gm.graph.nodes), gm.graph
    with torch.no_grad():
        assert_same_bits(list(gm(*graph.arguments)), [function(x, mask)])


def assigned(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[x > 0] = 0
    y.t()[mask] = 3
    y[:, 1:][x[:, 1:] > 1] = 4
    y[:, 0][x[:, 0] > 1] = 5
    y[1:].t()[x[1:].t() > 2] = 6
    y[x < 0] = x.mean()
    y[mask[:3]] = x[:1]
    y = y.masked_fill(mask.flip(0), x.max())
    return y.masked_fill(mask, torch.tensor(2))


def test_a_number_has_no_element_that_a_mask_could_select() -> None:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        return torch.index_put(x * 2, (mask,), torch.tensor(2.0))

    number, mask = torch.tensor(1.0), torch.tensor(True)
    with torch.no_grad(), pytest.raises(IndexError):
        torch.compile(function, backend="nimble")(number, mask)
    with pytest.raises(IndexError):
        function(number, mask)


def test_an_assignment_by_a_mask_is_captured() -> None:
    compiled = torch.compile(assigned, backend="nimble", options={"device": "virtual"})
    with torch.no_grad():
        for _ in range(3):
            x, mask = torch.randn(3, 4), torch.rand(4) > 0.5
            assert_same_bits(compiled(x, mask), assigned(x, mask))
    (program,) = nimble_fx.programs()
    assert program.status.frozen


def test_an_assignment_by_a_mask_is_planned_to_be_captured() -> None:
    program = nimble_fx.plan(
        assigned, (torch.randn(3, 4), torch.rand(4) > 0.5), device="h100", training=False
    )
    assert COUNT.isdisjoint(task.target for task in program.graph.tasks), program.source


@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_views_of_what_is_filled_lie_in_it(options: dict[str, Any]) -> None:
    def split(x: Tensor, mask: Tensor) -> Tensor:
        x[mask] = 1.0
        first, second = x.unbind(0)
        added = first + second
        x.mul_(2)
        y = x.t() * 2
        y[mask.t()] = 3.0
        third, fourth = y.chunk(2)
        return torch.cat((added, third.flatten(), fourth.flatten()))

    compiled = torch.compile(split, backend="nimble", options=options)
    ours, mask = torch.randn(2, 4), torch.randn(2, 4) > 0
    theirs = ours.clone()
    with torch.no_grad():
        for _ in range(3):
            assert_same_bits(compiled(ours, mask), split(theirs, mask))
            assert_same_bits(ours, theirs)


@pytest.mark.parametrize("shape", [(3, 2), (5, 3, 2), (2,)])
def test_a_function_that_fills_returns_a_new_tensors_strides(shape: tuple[int, ...]) -> None:
    def fill(x: Tensor, mask: Tensor) -> Tensor:
        return torch.masked_fill(x.t(), mask, torch.tensor(2.0))

    x, mask = torch.randn(2, 3), torch.randn(shape) > 0
    assert_same_bits(torch.compile(fill, backend="nimble")(x, mask), fill(x, mask))
    (program,) = nimble_fx.programs()
    assert COUNT.isdisjoint(task.target for task in program.graph.tasks), program.source


def test_gradients_pass_by_what_is_filled() -> None:
    compiled = torch.compile(assigned, backend="nimble", options={"device": "virtual"})
    x, mask = torch.randn(3, 4, requires_grad=True), torch.rand(4) > 0.5
    expected = x.detach().clone().requires_grad_()
    for _ in range(2):
        compiled(x, mask).square().sum().backward()
        assigned(expected, mask).square().sum().backward()
        torch.testing.assert_close(x.grad, expected.grad)
