"""Properties of operators, as PyTorch's dispatcher knows them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from nimble_fx.torch_internals.names import OpOverload, has_kernel_for_dispatch_key

KERNELS = "nimble_kernels"
"""The namespace of kernels of Inductor, and of the model; see `rewrites.kernel_registry`."""

RESHAPES = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
"""Views with another shape. PyTorch 2.15 traces a linear layer on sequences with the unsafe one."""

_ALLOCATIONS = (
    *("empty", "empty_like", "empty_permuted", "empty_strided"),
    *("new_empty", "new_empty_strided"),
)
_FACTORIES = (
    *("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like"),
    *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "zeros_like"),
)
_COPY_WHOLE_STORAGE = ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter")
_OPAQUE = ("_cudnn_rnn_backward", "miopen_rnn_backward", "mkldnn_rnn_layer_backward")

_ONEDNN = {
    "mkldnn::_convolution_pointwise",
    "mkldnn::_convolution_pointwise.binary",
    "mkldnn::_linear_pointwise",
}


def does_what_its_schema_says(op: OpOverload) -> bool:
    """Whether it is a built-in tensor operator; a custom one may do more than its schema says."""
    return op.namespace in {"aten", "prims", KERNELS} or op.name() in _ONEDNN  # type: ignore[no-untyped-call]


def schema_of(op: OpOverload) -> Any:
    """The operator's schema: its arguments and returns, and which of them alias."""
    return op._schema


def arguments_by_name(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments that a call passes, by their names in the schema."""
    names = [parameter.name for parameter in schema_of(op).arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def draws(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    has_dropout = any(each.name == "dropout_p" for each in schema_of(op).arguments)
    return not has_dropout or bool(arguments_by_name(op, args, kwargs).get("dropout_p"))


def only_allocates(function: Any) -> bool:
    """Whether it is an operator that allocates memory and runs no kernel."""
    return _is_among(_ALLOCATIONS, function)


def copies_whole_storage(function: Any) -> bool:
    """Whether its result is a copy of its first argument's storage, also around the argument.

    The copy has the argument's strides and storage offset, so `as_strided` may read all of it.
    """
    return _is_among(_COPY_WHOLE_STORAGE, function)


def is_factory(function: Any) -> bool:
    """Whether it is an operator that reads only metadata of its first argument (`zeros_like`)."""
    return _is_among(_FACTORIES, function)


def reads_opaque_memory(function: Any) -> bool:
    """Whether it reads what its forward wrote in a library's own format, of unknown size.

    Other memory in its place crashes the process.
    """
    return _is_among(_OPAQUE, function)


def is_kernel(function: Any) -> bool:
    """Whether it is a kernel of Inductor's, or one that the model launches."""
    return getattr(function, "namespace", None) == KERNELS


def is_composite(op: OpOverload) -> bool:
    """Whether it is CompositeImplicitAutograd: it calls other operators, and may return inputs."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return bool(has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def overload_name(op: OpOverload) -> str:
    """The name of the overload: "Tensor" of `aten.add.Tensor`, "default" of `aten.relu.default`."""
    return str(op._overloadname)


@cache
def _is_among(names: tuple[str, ...], function: Any) -> bool:
    """Whether a function is one of the ATen operators of these names."""
    if not isinstance(function, OpOverload):
        return False
    namespace, _, name = schema_of(function).name.partition("::")
    return namespace == "aten" and name in names
