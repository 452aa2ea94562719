"""Sizes as text are the numbers that Python and PyTorch compute."""

import ast
import math
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.kernel_sizes import (
    end_of,
    evaluated,
    index_at,
    is_size,
    permutation,
    size_of,
    sum_of,
    symbols_in,
    value_of,
)

POSITIVE = st.integers(1, 50)
TEXTS = st.recursive(
    st.sampled_from(["s0", "s17"]) | POSITIVE.map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda x: f"({x[0]}) {x[1]} ({x[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), POSITIVE).map(
            lambda x: f"({x[0]}) {x[1]} {x[2]}"
        ),
        st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(
            lambda x: f"{x[0]}({x[1]}, {x[2]})"
        ),
        inner.map(lambda x: f"(-({x}))"),
        st.tuples(st.sampled_from(["ceil", "floor", "trunc"]), inner, POSITIVE).map(
            lambda x: f"math.{x[0]}(0.75*torch.sym_float({x[1]}) + ({x[1]}) / {x[2]})"
        ),
    ),
    max_leaves=8,
)


@given(TEXTS, POSITIVE, POSITIVE)
def test_a_size_has_the_value_that_python_computes(text: str, one: int, other: int) -> None:
    symbols = {"s0": one, "s17": other}
    assert is_size(ast.parse(text, mode="eval").body)
    assert value_of(text, symbols) == eval(text, {"math": math, "torch": torch}, symbols)
    assert set(symbols_in([text, 3])) == {name for name in symbols if name in text}


@pytest.mark.parametrize("text", ["s0 / 2", "1.5", "1.5 * s0", "max(1, torch.sym_float(s0))"])
def test_a_number_that_may_not_be_whole_is_no_size(text: str) -> None:
    assert not is_size(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize("text", ["f(s0)", "s0[0]", "math.sqrt(s0)", "s0 ** 2", "not s0", "'a'"])
def test_what_inductor_does_not_write_for_sizes_is_refused(text: str) -> None:
    assert not is_size(ast.parse(text, mode="eval").body)
    with pytest.raises(UnsupportedError, match="unknown size"):
        value_of(text, {"s0": 2})


@given(TEXTS, TEXTS, POSITIVE, POSITIVE)
def test_sums_are_sums(one: str, other: str, s0: int, s17: int) -> None:
    symbols = {"s0": s0, "s17": s17}
    total = value_of(one, symbols) + value_of(other, symbols)
    assert value_of(sum_of(one, other), symbols) == total
    assert sum_of(s0, s17) == s0 + s17


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=3), st.integers(0, 9))
def test_a_view_is_within_its_end_and_no_further(
    dimensions: list[tuple[int, int]], offset: int
) -> None:
    """By PyTorch's own check of the bounds of `as_strided`."""
    symbols = {"s9": offset, **{f"s{i}": n for i, (n, _) in enumerate(dimensions)}}
    size, stride = [n for n, _ in dimensions], [step for _, step in dimensions]
    end = end_of(size, stride, offset)
    assert isinstance(end, int)
    assert value_of(end_of([*symbols][1:], stride, "s9"), symbols) == end
    torch.arange(end).as_strided(size, stride, offset)
    if end:
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.arange(end - 1)[:].as_strided(size, stride, offset)


def test_sizes_of_fake_tensors_are_text_that_computes_them() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(5, 8))
    joined = torch.cat([x, x[1:]])[:, : x.shape[1] // 2]
    symbols = {str(n): real for n, real in zip(x.shape, (5, 8), strict=True)}
    assert [value_of(size_of(n), symbols) for n in joined.shape] == [9, 4]
    assert size_of(4) == 4
    assert size_of(x.shape[0] - x.shape[0] + 3) == 3  # a SymInt that is a number


def test_symbols_may_stand_for_anything() -> None:
    result = evaluated("max(0, s0 - 1)", str.upper, lambda function, *args: args)
    assert result == (0, ("S0", 1))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=4), st.data())
def test_a_transposed_tensor_is_one_whatever_its_strides(
    dimensions: list[tuple[int, int]], data: st.DataObject
) -> None:
    size, stride = [n for n, _ in dimensions], [step for _, step in dimensions]
    tensor, order = torch.zeros(99).as_strided(size, stride), range(len(size))
    wanted = tensor.permute(data.draw(st.permutations(order)))
    found = permutation(tensor, wanted.shape, wanted.stride())
    if found is None:
        assert wanted.stride() == tensor.stride() or len(set(dimensions)) < len(dimensions)
    else:
        result = tensor.permute(found)
        assert (result.shape, result.stride()) == (wanted.shape, wanted.stride())
        assert found != list(order)


def test_other_parts_are_no_transposed_tensors() -> None:
    x = torch.zeros(4, 3)
    for size, stride in (([4, 3], [3, 1]), ([12], [1]), ([3, 4], [4, 1]), ([3, 4, 3], [1, 3, 1])):
        assert permutation(x, size, stride) is None
    assert permutation(x, [3, 4], [1, 3]) == [1, 0]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=4),
    st.permutations(range(4)),
    st.integers(0, 300),
)
def test_an_element_is_found_by_its_place_in_memory(
    sizes_and_gaps: list[tuple[int, int]], order: list[int], offset: int
) -> None:
    """Each size comes with the gap after it; PyTorch says where each element is."""
    whole = torch.arange(prod(size + gap for size, gap in sizes_and_gaps))
    whole = whole.view([size + gap for size, gap in sizes_and_gaps])
    tensor = whole[tuple(slice(size) for size, _ in sizes_and_gaps)]
    tensor = tensor.permute([i for i in order if i < tensor.dim()])
    index = index_at(tensor, offset)
    assert (index is None) == (offset not in tensor)
    if index is not None:
        assert tensor[tuple(index)] == offset


def test_of_symbolic_sizes_none_is_found() -> None:
    x = torch.zeros(3, 4)
    assert index_at(FakeTensorMode(shape_env=ShapeEnv()).from_tensor(x), 4) is None
    assert index_at(x, "s0") is None
    assert index_at(x, 4) == [1, 0]
