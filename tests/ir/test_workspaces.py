"""Workspaces are limited only if no product can use more."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.ir.symbolic_sizes import numbers
from nimble_fx.ir.types import TensorType
from nimble_fx.ir.workspaces import SMALL_WORKSPACE, takes_workspace, workspace_limit
from tests.support.schedules import traced

SIZES = st.integers(0, 2000)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@given(SIZES, SIZES, SIZES)
def test_a_limited_product_fits_however_its_sum_is_split(m: int, k: int, n: int) -> None:
    """Each split of at least 128 summands keeps the whole result, in float32 or wider."""
    limited = workspace_limit(traced(torch.mm, meta(m, k), meta(k, n)).graph) is not None
    n_splits = -(-k // 128)
    if limited and n_splits > 1:
        assert n_splits * m * n * 4 <= SMALL_WORKSPACE
    if not limited:
        assert k > 128
        assert n_splits * (m + 127) * (n + 127) * 4 > SMALL_WORKSPACE


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.addmm, [(16,), (16, 64), (64, 16)]),
        (torch.bmm, [(3, 16, 64), (3, 64, 16)]),
        (torch.baddbmm, [(3, 16, 16), (3, 16, 64), (3, 64, 16)]),
    ],
)
def test_small_products_are_limited_and_the_first_large_one_ends_it(
    function: object, shapes: list[tuple[int, ...]]
) -> None:
    def program(*inputs: Tensor) -> Tensor:
        return function(*inputs)  # type: ignore[operator]

    def with_large(x: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        return program(*inputs), x @ x

    inputs = [meta(*shape) for shape in shapes]
    assert workspace_limit(traced(program, *inputs).graph) == SMALL_WORKSPACE
    assert workspace_limit(traced(with_large, meta(1024, 1024), *inputs).graph) is None


@torch.library.custom_op("test_workspaces::product", mutates_args=())
def product(x: Tensor) -> Tensor:
    """May call cuBLAS, for all that is known."""
    return x @ x


@product.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("function", [product, torch.linalg.inv, lambda x: torch.mv(x, x[0])])
def test_products_that_are_not_known_are_not_limited(function: object) -> None:
    graph = traced(lambda x: function(x), meta(16, 16)).graph  # type: ignore[operator]
    assert any(takes_workspace(task) for task in graph.launching)
    assert workspace_limit(graph) is None


def test_products_of_symbolic_sizes_are_not_limited() -> None:
    graph = traced(torch.mm, meta(16, 16), meta(16, 16)).graph
    (task,) = graph.tasks
    assert isinstance(task.type, TensorType)
    assert numbers(task.type.shape) == [16, 16]
    symbolic = task.updated(type=replace(task.type, shape=("s0", 16)))
    assert workspace_limit(graph.replace_tasks([symbolic])) is None


@pytest.mark.parametrize("function", [torch.relu, torch.sum, lambda x: torch.cat([x, x])])
def test_what_computes_no_product_takes_none(function: object) -> None:
    graph = traced(lambda x: function(x), meta(16, 16)).graph  # type: ignore[operator]
    assert not any(takes_workspace(task) for task in graph.launching)
