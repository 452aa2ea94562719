"""Views of a tensor are made again, wherever the tensor begins in its memory."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nimble_fx.rewrites.reinplace.written_views import steps_to_view
from nimble_fx.torch_internals.auto_functionalized import AsStrided, Slice, View

BASES = {
    "contiguous": lambda: torch.arange(24.0).reshape(2, 3, 4),
    "permuted": lambda: torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
    "behind": lambda: torch.arange(40.0).reshape(5, 2, 4)[2:],
    "with gaps": lambda: torch.arange(60.0).reshape(2, 5, 6)[:, 1:4, 1:5],
    "with rows of one element": lambda: torch.arange(5.0).reshape(5, 1, 1),
}
VIEWS = (
    lambda x: x[-1],
    lambda x: x[1:],
    lambda x: x[..., 0],
    lambda x: x.t() if x.dim() == 2 else x,
    lambda x: x.transpose(0, -1),
    lambda x: x.unsqueeze(0),
    lambda x: x[::2],
)


def geometry(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.storage_offset()


def as_strided(x: Tensor) -> View:
    return AsStrided(0, x.size(), x.stride(), x.storage_offset())


def made(view: View, base: Tensor, tensor: Tensor) -> Tensor:
    """What the steps for one tensor make of another, which may begin elsewhere in its memory."""
    steps = steps_to_view(view, base)
    assert steps is not None
    for operator, arguments in steps:
        tensor = operator(tensor, *arguments)
    return tensor


@pytest.mark.parametrize("base", BASES.values(), ids=list(BASES))
@given(chosen=st.lists(st.sampled_from(VIEWS), max_size=3))
def test_a_view_has_its_elements_and_moves_with_its_tensor(base: Any, chosen: list[Any]) -> None:
    x, wanted = base(), base()
    moved = torch.arange(99.0).as_strided(x.shape, x.stride(), x.storage_offset() + 7)
    for view in chosen:
        if wanted.dim() and view(wanted).numel():
            wanted = view(wanted)
    shape, stride, offset = geometry(wanted)
    assert geometry(made(as_strided(wanted), x, x)) == (shape, stride, offset)
    assert geometry(made(as_strided(wanted), x, moved)) == (shape, stride, offset + 7)


@pytest.mark.parametrize("start", range(2))
@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize("base", BASES.values(), ids=list(BASES))
def test_a_slice_is_counted_from_the_beginning_of_the_tensor(
    base: Any, dim: int, start: int
) -> None:
    x = base()
    wanted = x.narrow(dim, start, 1) if x.shape[dim] > start else x.narrow(dim, 0, 1)
    begin, step = wanted.storage_offset(), x.stride(dim)
    if begin % step == 0:
        described = Slice(0, dim, begin // step, begin // step + 1)
        assert geometry(made(described, x, x)) == geometry(wanted)


@pytest.mark.parametrize("base", list(BASES.values())[:4], ids=list(BASES)[:4])
def test_rows_and_columns_are_selected(base: Any) -> None:
    x = base()
    for part in (x[1], x[:, 1], x[..., 2], x[1, 1], x[1, :, 2], x[:, 1, 2], x[1, 1, 2]):
        steps = steps_to_view(as_strided(part), x)
        assert steps is not None
        assert {operator for operator, _ in steps} == {torch.ops.aten.select.int}
        assert geometry(made(as_strided(part), x, x)) == geometry(part)


def test_memory_beside_a_tensor_is_not_its_own() -> None:
    x = BASES["with gaps"]()[:1]
    for begin in (-7, 16, 30):
        outside = x.as_strided((3, 4), (6, 1), x.storage_offset() + begin)
        assert steps_to_view(as_strided(outside), x) is None


def test_a_symbolic_offset_that_is_no_selection_is_not_guessed() -> None:
    n = ShapeEnv().create_unbacked_symint()
    x = torch.arange(24.0).reshape(4, 6)
    assert steps_to_view(AsStrided(0, (2, 2), (6, 1), n), x) is None
