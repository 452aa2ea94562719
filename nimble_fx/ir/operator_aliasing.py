"""The arguments that an operator writes or returns: by its schema, or listed here if undeclared."""

from functools import cache

import torch

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of

UNDECLARED_VIEWS = {
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.lift.default,
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
    torch.ops.inductor._reinterpret_tensor.default,
}
_UNDECLARED_RETURNS_OF_AN_ARGUMENT = {
    torch.ops.aten._test_optional_filled_intlist.default,
    torch.ops.aten._test_optional_floatlist.default,
    torch.ops.aten._test_optional_intlist.default,
    torch.ops.aten.dequantize.self,
    torch.ops.prims.device_put.default,
}
"""They return their first argument itself or a copy; neither schema nor fake tensor says which."""

_UNDECLARED_UPDATES_OF_STATISTICS = {
    "_batch_norm_impl_index",
    "batch_norm",
    "batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_update_stats",
    "cudnn_batch_norm",
    "instance_norm",
    "miopen_batch_norm",
    "native_batch_norm",
}


@cache
def written_or_returned(op: OpOverload) -> list[tuple[int, str, bool, bool]]:
    """The parameters that an operator writes or aliases: (position, name, written, returned).

    A list of views, "Tensor(a)[]", has no alias set in PyTorch; its parameter is "Tensor(a -> *)".
    """
    returns = [r.alias_info.before_set for r in schema_of(op).returns if r.alias_info]
    returned, returns_list_of_views = set().union(*returns), not all(returns)
    found = []
    for i, parameter in enumerate(schema_of(op).arguments):
        alias, undeclared = parameter.alias_info, _is_undeclared_write(op, parameter.name)
        if alias is not None:
            is_in_list = returns_list_of_views and "*" in alias.after_set
            is_returned = is_in_list or not returned.isdisjoint(alias.before_set)
            found.append((i, parameter.name, bool(alias.is_write), is_returned))
        elif undeclared:
            found.append((i, parameter.name, True, False))
        elif i == 0 and op in _UNDECLARED_RETURNS_OF_AN_ARGUMENT:
            found.append((i, parameter.name, False, True))
    return found


@cache
def is_view(op: OpOverload) -> bool:
    """Whether an operator's results are views of its arguments, by its schema."""
    return op in UNDECLARED_VIEWS or is_autograd_view(op)


@cache
def is_autograd_view(op: OpOverload) -> bool:
    """Whether autograd regards an operator's results as views: if its schema declares them.

    In training, the caller cannot write to a view that a graph returns: autograd refuses that for
    views that a custom function returned.
    """
    returns = schema_of(op).returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def _is_undeclared_write(op: OpOverload, parameter: str) -> bool:
    """Whether an operator writes an argument that its schema does not mark as written."""
    name = schema_of(op).name.split("::")[-1]
    return name in _UNDECLARED_UPDATES_OF_STATISTICS and parameter.startswith("running_")
