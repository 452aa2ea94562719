"""Which arguments an operator writes or returns, by its schema and where that does not say so."""

from functools import cache

import torch

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of

VIEWS_WITHOUT_SAYING_SO = {
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
    torch.ops.inductor._reinterpret_tensor.default,
}
_RETURN_OR_COPY_WITHOUT_SAYING_SO = {
    torch.ops.aten._test_optional_filled_intlist.default,
    torch.ops.aten._test_optional_floatlist.default,
    torch.ops.aten._test_optional_intlist.default,
    torch.ops.prims.device_put.default,
}
"""What they return is their first argument itself or new; neither schema nor fake tensor tells."""

_UPDATE_STATISTICS_WITHOUT_SAYING_SO = {
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
def touched(op: OpOverload) -> list[tuple[int, str, bool, bool]]:
    """The parameters that matter to memory: (position, name, is it written, is it returned)."""
    returned = {a for r in schema_of(op).returns if r.alias_info for a in r.alias_info.before_set}
    touched = []
    for i, parameter in enumerate(schema_of(op).arguments):
        alias, hidden = parameter.alias_info, _is_written_in_secret(op, parameter.name)
        if alias is not None:
            is_returned = bool(returned & alias.before_set)
            touched.append((i, parameter.name, bool(alias.is_write), is_returned))
        elif hidden:
            touched.append((i, parameter.name, True, False))
        elif i == 0 and op in _RETURN_OR_COPY_WITHOUT_SAYING_SO:
            touched.append((i, parameter.name, False, True))
    return touched


def _is_written_in_secret(op: OpOverload, parameter: str) -> bool:
    """Whether an operator writes an argument that its schema calls unchanged."""
    name = schema_of(op).name.split("::")[-1]
    return name in _UPDATE_STATISTICS_WITHOUT_SAYING_SO and parameter.startswith("running_")
