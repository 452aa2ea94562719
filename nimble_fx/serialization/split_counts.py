"""The number of tensors that an operator splits one into, which an untrusted file may make huge."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nimble_fx.ir.task_graph import Arg
from nimble_fx.ir.types import TensorType
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import arguments_by_name, schema_of

_aten = torch.ops.aten
_BY_LENGTH = {_aten.split.Tensor, _aten.split_copy.Tensor, _aten.unsafe_split.Tensor}
_ONE_BY_ONE = {_aten.unbind.int, _aten.unbind_copy.int}
_AT_MOST = {_aten.chunk.default, _aten.unsafe_chunk.default}
_BY_NUMBER = {_aten.tensor_split.sections, _aten.hsplit.int, _aten.vsplit.int, _aten.dsplit.int}


def n_parts(op: OpOverload, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> int:
    """The number of parts, or at most twice as many; 0 for an operator that does not split.

    Args:
        op: the operator.
        args: its positional arguments, with types for tensors.
        kwargs: its keyword arguments.
    """
    if op not in _BY_LENGTH | _ONE_BY_ONE | _AT_MOST | _BY_NUMBER:
        return 0
    by_name = arguments_by_name(op, args, kwargs)
    whole = by_name.pop(schema_of(op).arguments[0].name, None)
    dim = by_name.pop("dim", 0)
    number = next((n for n in by_name.values() if isinstance(n, int)), 1)
    length = _length(whole, dim)
    if op in _BY_LENGTH:
        return -(-length // max(number, 1))
    if op in _AT_MOST:
        return min(number, length)
    return length if op in _ONE_BY_ONE else number


def _length(kind: Any, dim: Any) -> int:
    """The size of the dimension that is split; 0 if it is not known."""
    sizes = kind.shape if isinstance(kind, TensorType) else ()
    found = sizes[dim] if isinstance(dim, int) and -len(sizes) <= dim < len(sizes) else 0
    return int(found) if isinstance(found, int) else 0
