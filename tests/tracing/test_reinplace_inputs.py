"""Partition of inputs that are written where they are, and those that must not be."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.tracing.reinplace_inputs import reinplace_inputs
from tests.support.eager import assert_same

PLACES = torch.tensor([2, 0])

Program = Callable[[Tensor, Tensor], Any]


def index_copy(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_copy_(0, PLACES, x).exp()


def index_add(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_add_(0, PLACES, x, alpha=2).exp()


def index_put(cache: Tensor, x: Tensor) -> Tensor:
    cache[PLACES] = x
    return cache[1:].exp()


def scatter(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_(0, PLACES[:, None].expand(2, 3), x).exp()


def scatter_value(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_(0, PLACES[:, None].expand(2, 3), 7.0) + x.sum()


def scatter_add(cache: Tensor, x: Tensor) -> Tensor:
    return cache.scatter_add_(0, PLACES[:, None].expand(2, 3), x).exp()


def read_before(cache: Tensor, x: Tensor) -> Any:
    before = cache.exp()
    return before, cache.index_copy_(0, PLACES, x).exp()


def written_from_itself(cache: Tensor, x: Tensor) -> Tensor:
    return cache.index_copy_(0, PLACES, cache[1:3] + x).exp()


def kept_beside(cache: Tensor, x: Tensor) -> Tensor:
    new = cache.index_copy(0, PLACES, x)
    cache.copy_(new)
    return new


def kept_beside_in_part(cache: Tensor, x: Tensor) -> Tensor:
    return kept_beside(cache, x)[1:]


def written_twice(cache: Tensor, x: Tensor) -> Tensor:
    cache.index_copy_(0, PLACES, x)
    return cache.index_copy_(0, PLACES, x + 1).exp()


def run(program: Program, **options: Any) -> None:
    """Compares what calls return and leave with eager, and after the results were written to."""
    compiled = torch.compile(program, backend="nimble", options=options)
    cache = torch.randn(4, 3)
    expected_cache = cache.clone()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3)
            results = compiled(cache, x), program(expected_cache, copy.deepcopy(x))
            assert_same(*results)
            for result in results:
                for tensor in result if isinstance(result, tuple) else (result,):
                    tensor.add_(1)
            assert_same(cache, expected_cache)


def copies_back() -> int:
    (program,) = nimble_fx.programs()
    return sum(task.target is torch.ops.aten.copy_.default for task in program.graph.tasks)


@pytest.mark.parametrize(
    "program", [index_copy, index_add, index_put, scatter, scatter_value, scatter_add]
)
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_a_part_of_an_input_is_written_without_a_copy_of_the_whole(
    program: Program, options: dict[str, Any]
) -> None:
    run(program, **options)
    assert copies_back() == 0


@pytest.mark.parametrize(
    "program", [read_before, written_from_itself, kept_beside, kept_beside_in_part, written_twice]
)
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_an_input_that_is_read_otherwise_or_kept_beside_its_update_is_written_at_the_end(
    program: Program, options: dict[str, Any]
) -> None:
    run(program, **options)
    assert copies_back() == 1


def test_an_update_that_the_graph_returns_is_no_input() -> None:
    def updated(cache: Tensor, x: Tensor) -> Tensor:
        new = cache.index_copy(0, PLACES, x)
        torch.ops.aten.copy_(cache, new)
        return new

    gm = make_fx(updated, tracing_mode="fake", _allow_non_fake_inputs=True)(
        torch.zeros(4, 3), torch.ones(2, 3)
    )
    cache = torch.zeros(4, 3)
    result = reinplace_inputs(gm)(cache, torch.ones(2, 3))
    assert_same(result, cache)
    assert result.data_ptr() != cache.data_ptr()


@pytest.mark.parametrize("options", [{}, {"device": "virtual"}], ids=["cpu", "virtual"])
def test_an_input_with_gaps_is_written_at_the_end_for_its_update_has_none(
    options: dict[str, Any],
) -> None:
    def flat(cache: Tensor, x: Tensor) -> Tensor:
        return cache.index_copy_(0, PLACES, x).reshape(-1) * 2

    compiled = torch.compile(flat, backend="nimble", options=options)
    whole = torch.randn(4, 5)
    expected, x = whole.clone(), torch.randn(2, 3)
    with torch.no_grad():
        assert_same(compiled(whole[:, :3], x), flat(expected[:, :3], x))
    assert_same(whole, expected)
    assert copies_back() == 1
