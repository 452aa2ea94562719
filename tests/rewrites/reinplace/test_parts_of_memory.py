"""Views of one memory: which have the same elements, and which are disjoint."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.rewrites.reinplace.parts_of_memory import (
    are_disjoint,
    have_same_layout,
    is_same_part,
    is_whole,
)

SIZES = (3, 4, 2)
N = 24


@st.composite
def boxes(draw: st.DrawFn, sizes: Sequence[int] = SIZES) -> tuple[slice | int, ...]:
    """An index of slices and numbers."""
    index: list[slice | int] = []
    for size in sizes:
        begin = draw(st.integers(0, size - 1))
        end = draw(st.integers(begin, size))
        choices: list[slice | int] = [begin, slice(begin, end), slice(None)]
        index.append(draw(st.sampled_from(choices)))
    return tuple(index)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "turned": lambda x: x.permute(list(reversed(range(x.dim())))),
    "every other": lambda x: x[::2] if x.dim() else x,
    "diagonal": lambda x: x.diagonal() if x.dim() > 1 else x,
    "flat": lambda x: x.reshape(-1) if x.is_contiguous() else x,
    "expanded": lambda x: x.expand(2, *x.shape),
    "halves": lambda x: x.view(torch.int16) if x.dim() and x.stride(-1) == 1 else x,
    "overlapping": lambda x: x.as_strided((2, 2), (1, 1), x.storage_offset() % (N - 2)),
    "shifted": lambda x: x.as_strided((2, 2), (4, 1), x.storage_offset() % (N - 5)),
}


@st.composite
def views(draw: st.DrawFn, whole: Tensor) -> Tensor:
    """A view of a tensor: a box of it, or of a view of that."""
    turned = whole.permute(*draw(st.permutations(range(3))))
    view = turned[draw(boxes(turned.shape))]
    return VIEWS[draw(st.sampled_from(sorted(VIEWS)))](view)


def elements(view: Tensor) -> list[int]:
    """The places in memory of a view's elements, in order, in bytes."""
    places = torch.arange(2 * N).as_strided(view.shape, view.stride(), view.storage_offset())
    first = (places * view.itemsize).flatten().tolist()
    return [begin + i for begin in first for i in range(view.itemsize)]


@settings(max_examples=300)
@given(st.data(), st.permutations(range(3)))
def test_disjoint_views_share_no_element_and_equal_ones_all(
    data: st.DataObject, order: list[int]
) -> None:
    whole = torch.zeros([SIZES[i] for i in order]).permute(data.draw(st.permutations(range(3))))
    one, other = data.draw(views(whole)), data.draw(views(whole))
    if are_disjoint(one, other, whole):
        assert not set(elements(one)) & set(elements(other))
    if is_same_part(one, other):
        assert elements(one) == elements(other)
        assert one.dtype == other.dtype


@settings(max_examples=200)
@given(boxes(), boxes(), st.permutations(range(3)))
def test_boxes_that_share_no_element_are_seen_to_be_disjoint(
    one: tuple[slice | int, ...], other: tuple[slice | int, ...], order: list[int]
) -> None:
    turned = torch.zeros([SIZES[i] for i in order])
    whole = turned.permute([order.index(i) for i in range(3)])
    first, second = whole[one], whole[other]
    if first.numel() and second.numel():
        is_disjoint = not set(elements(first)) & set(elements(second))
        assert are_disjoint(first, second, whole) == is_disjoint


OVERLAPPING: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "halves of an element": lambda x: (x[0, 1, :1].view(torch.int16), x[0, 1, :1]),
    "windows": lambda x: (x.as_strided((2, 2), (1, 1), 0), x[0, 1, :1]),
    "every other row": lambda x: (x[::2], x[2]),
    "flat": lambda x: (x[0].view(-1), x[0, 1]),
    "diagonal": lambda x: (x[:, :, 0].diagonal(), x[1, 1]),
    "expanded": lambda x: (x[1, :1].expand(4, 2), x[1]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_is_no_box_is_not_taken_for_one(name: str) -> None:
    whole = torch.zeros(SIZES)
    one, other = OVERLAPPING[name](whole)
    assert set(elements(one)) & set(elements(other))
    assert not are_disjoint(one, other, whole)
    assert not are_disjoint(other, one, whole)


def test_a_tensor_is_whole_if_its_memory_holds_nothing_else() -> None:
    x = torch.zeros(4, 3)
    assert is_whole(x)
    assert is_whole(x.t())
    assert not is_whole(x[:2])
    assert not is_whole(x[2:])
    assert not is_whole(x[1:3])


def test_conjugates_and_negatives_are_not_the_same_part() -> None:
    x = torch.zeros(2, dtype=torch.complex64)
    assert is_same_part(x, x[:])
    assert not is_same_part(x, x.conj())
    assert not is_same_part(x.conj().imag, x.imag)


def test_layouts_differ_by_type_shape_and_strides() -> None:
    x = torch.zeros(2, 2)
    assert have_same_layout(x, torch.ones(2, 2))
    assert not have_same_layout(x, x.t())
    assert not have_same_layout(x, x[:1])
    assert not have_same_layout(x, x.int())
