"""The in-place forms of PyTorch's operators: `aten.add_.Tensor` of `aten.add.Tensor`."""

from functools import cache
from typing import Any

import torch

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import (
    does_what_its_schema_says,
    is_composite,
    overload_name,
    schema_of,
)


@cache
def allocates_results(target: Any) -> bool:
    """Whether an operator allocates its results; False for custom ones: schemas may be wrong."""
    if not isinstance(target, OpOverload) or not does_what_its_schema_says(target):
        return False
    return not is_composite(target) and all(r.alias_info is None for r in schema_of(target).returns)


@cache
def elementwise_in_place_form(target: Any) -> OpOverload | None:
    """The in-place form of an elementwise operator without random draws; None if there is none."""
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    return None if torch.Tag.nondeterministic_seeded in target.tags else in_place_form(target)


@cache
def in_place_form(target: OpOverload) -> OpOverload | None:
    """The operator that writes the results of another to its first argument; None if none does."""
    if not allocates_results(target):
        return None
    packet = getattr(torch.ops.aten, f"{schema_of(target).name.removeprefix('aten::')}_", None)
    form = getattr(packet, overload_name(target), None)
    return form if isinstance(form, OpOverload) and _writes_first(form, target) else None


def _writes_first(form: OpOverload, target: OpOverload) -> bool:
    """Whether it has the target's parameters, and writes only the first."""
    first, *others = schema_of(form).arguments
    writes = first.alias_info is not None and first.alias_info.is_write
    is_alike = _parameters(form) == _parameters(target) and not is_composite(form)
    return writes and is_alike and all(other.alias_info is None for other in others)


def _parameters(op: OpOverload) -> list[tuple[str, str, Any, bool]]:
    return [(p.name, str(p.type), p.default_value, p.kwarg_only) for p in schema_of(op).arguments]
