"""Copies of items of a list, whatever their dtypes and order."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.runtime.capture.grouped_copies import GroupedClone, grouped_copy
from nimble_fx.torch_internals import foreach
from nimble_fx.torch_internals.names import Missing
from tests.support.eager import assert_same

KINDS = st.sampled_from([torch.float32, torch.int64, torch.bool, torch.float16, None])


@given(st.lists(KINDS), st.data())
def test_the_chosen_items_are_copied_and_no_others(
    kinds: list[torch.dtype | None], data: st.DataObject
) -> None:
    ones = [None if kind is None else torch.ones(2, dtype=kind) for kind in kinds]
    zeros = [None if one is None else torch.zeros_like(one) for one in ones]
    tensors = [i for i, one in enumerate(ones) if one is not None]
    places = data.draw(st.lists(st.sampled_from(tensors), unique=True)) if tensors else []
    grouped_copy(ones, places)(zeros, ones)
    assert [i for i in tensors if bool(zeros[i].all())] == sorted(places)  # type: ignore[union-attr]


def test_tensors_of_one_dtype_are_copied_together() -> None:
    dtypes = [torch.float32, torch.float32, torch.int32, torch.int32, torch.int64]
    values = [torch.ones(i + 1, dtype=dtype) for i, dtype in enumerate(dtypes)]
    targets = [torch.zeros_like(value) for value in values]
    with torch.profiler.profile() as profile:
        grouped_copy(values, range(5))(targets, values)
    calls = [event.name for event in profile.events() or () if event.name == "aten::_foreach_copy_"]
    assert len(calls) == 2


@given(st.lists(KINDS.filter(bool), max_size=6), st.booleans())
def test_clones_have_the_values_and_strides_that_their_tensors_have_then(
    kinds: list[torch.dtype], is_old: bool
) -> None:
    tensors = [torch.empty(3, n, dtype=kind).t() for n, kind in enumerate(kinds)]
    clone = GroupedClone(tensors)
    for value in (0, 1):
        for tensor in tensors:
            tensor.fill_(value)
        with pytest.MonkeyPatch.context() as patch:
            if is_old:
                patch.setattr(foreach, "_foreach_clone", Missing("torch._foreach_clone"))
            clones = clone()
        assert_same(clones, tensors)
        assert [each.stride() for each in clones] == [each.stride() for each in tensors]
        assert not {*map(Tensor.data_ptr, clones)} - {0} & {*map(Tensor.data_ptr, tensors)}


def test_tensors_of_one_dtype_are_cloned_together(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def counted(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        groups.append(len(tensors))
        return [tensor.clone() for tensor in tensors]

    monkeypatch.setattr(foreach, "_foreach_clone", counted)
    GroupedClone([torch.ones(2, dtype=dtype) for dtype in (torch.int8, torch.half, torch.int8)])()
    assert groups == [2, 1]


def _copied(dtype: torch.dtype) -> bool:
    """Whether PyTorch copies tensors of a dtype, on a CPU; some exist by name only."""
    try:
        torch.ones(16, dtype=torch.uint8).view(dtype).clone()
    except RuntimeError:
        return False
    return True


DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if _copied(dtype)], ids=str)
def test_what_can_be_copied_alone_can_be_copied_with_another(dtype: torch.dtype) -> None:
    ones, zeros = (
        [torch.full((16,), value, dtype=torch.uint8, device="cuda") for _ in range(2)]
        for value in (1, 0)
    )
    values, targets = ([each.view(dtype) for each in some] for some in (ones, zeros))
    grouped_copy(values, range(2))(targets, values)
    assert_same(zeros, ones)
    assert_same([each.view(torch.uint8) for each in GroupedClone(values)()], ones)
