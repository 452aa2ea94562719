"""Copies of some items of a list, whatever their dtypes and order."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.runtime.capture.foreach_copy import GroupedCopy

KINDS = st.sampled_from([torch.float32, torch.int64, torch.bool, torch.float16, None])


@given(st.lists(KINDS), st.data())
def test_the_chosen_items_are_copied_and_no_others(
    kinds: list[torch.dtype | None], data: st.DataObject
) -> None:
    ones = [None if kind is None else torch.ones(2, dtype=kind) for kind in kinds]
    zeros = [None if one is None else torch.zeros_like(one) for one in ones]
    tensors = [i for i, one in enumerate(ones) if one is not None]
    places = data.draw(st.lists(st.sampled_from(tensors), unique=True)) if tensors else []
    GroupedCopy(ones, places)(zeros, ones)
    assert [i for i in tensors if bool(zeros[i].all())] == sorted(places)  # type: ignore[union-attr]


def test_tensors_of_one_dtype_are_copied_together() -> None:
    dtypes = [torch.float32, torch.float32, torch.int32, torch.int32, torch.int64]
    values = [torch.ones(i + 1, dtype=dtype) for i, dtype in enumerate(dtypes)]
    targets = [torch.zeros_like(value) for value in values]
    with torch.profiler.profile() as profile:
        GroupedCopy(values, range(5))(targets, values)
    calls = [event.name for event in profile.events() or () if event.name == "aten::_foreach_copy_"]
    assert len(calls) == 2
