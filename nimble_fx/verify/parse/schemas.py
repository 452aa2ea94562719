"""The memory effects of an operator by its schema, for proofs from a text alone.

It shares none of the rules of `trace`, which reads schemas too, so that one cannot repeat the
other's mistakes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Arg, ref_names
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import is_composite, schema_of
from nimble_fx.verify.factories import is_factory

Storages = tuple[str, ...]

_aten = torch.ops.aten
_UNDECLARED_VIEWS = {
    _aten._lazy_clone.default,
    _aten._sparse_coo_tensor_with_dims_and_tensors.default,
    _aten._unsafe_view.default,
    _aten.lift.default,
    _aten.sparse_compressed_tensor.comp_plain_value_size,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
    torch.ops.inductor._reinterpret_tensor.default,
}
_UNDECLARED_RETURNS_OF_AN_ARGUMENT = {
    "aten::_test_optional_filled_intlist",
    "aten::_test_optional_floatlist",
    "aten::_test_optional_intlist",
    "aten::dequantize",
    "prims::device_put",
}
_UNDECLARED_WRITES = {
    "aten::_batch_norm_impl_index",
    "aten::batch_norm",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_update_stats",
    "aten::cudnn_batch_norm",
    "aten::instance_norm",
    "aten::miopen_batch_norm",
    "aten::native_batch_norm",
}
_UNDECLARED_WRITTEN = ("running_mean", "running_var")
_METADATA_ONLY = {
    "aten::sym_size",
    "aten::sym_stride",
    "aten::sym_numel",
    "aten::sym_storage_offset",
    "aten::_assert_tensor_metadata",
}
_REPLACES_STORAGE = {
    "aten::_cudnn_rnn_flatten_weight",
    "aten::_resize_output_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::set",
    "aten::set_",
    "aten::set_data",
    "inductor::accumulate_grad_",
    "inductor::resize_storage_bytes_",
    "prims::resize",
}
_PYTORCH_NAMESPACES = ("aten", "prims")
_KERNELS = "nimble_kernels"
_OF_ONEDNN = {"mkldnn::_convolution_pointwise", "mkldnn::_linear_pointwise"}
_STREAM_NAMESPACE = "streams"
_COLLECTIVES = {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"}


@dataclass(frozen=True, slots=True)
class CallEffects:
    """The memory effects of a call; the first three are as in `Task`.

    Attributes:
        results: the storages of each of its results.
        grows: whether its result is a list of new tensors, whose length is not in the schema.
        lists: which of several results are such lists.
        ordered: whether it draws random numbers, or may have side effects.
    """

    reads: Storages = ()
    writes: Storages = ()
    allocates: Storages = ()
    results: tuple[Storages, ...] = ()
    grows: bool = False
    lists: frozenset[int] = frozenset()
    ordered: bool = False

    @property
    def holds(self) -> Storages:
        """The storages that all results together keep alive."""
        return tuple(dict.fromkeys(s for storages in self.results for s in storages))


def effects(
    target: Callable[..., Any],
    name: str,
    args: Sequence[Arg],
    kwargs: Mapping[str, Arg],
    storages_of: Callable[[Arg], Storages],
    copies: bool | None,
) -> CallEffects:
    """The memory effects of a call; a function of numbers has none.

    Args:
        target: the function that is called.
        name: the call's value, which gives new storages their names.
        args: positional arguments.
        kwargs: keyword arguments.
        storages_of: returns the storages of the tensors in an argument.
        copies: whether an operator that may return a view or a copy returns a copy; None if that
            is not known, so that both are assumed.

    Raises:
        ScheduleError: the call does not fit the schema, or the schema does not say enough.
    """
    if not isinstance(target, OpOverload):
        if storages_of((args, tuple(kwargs.values()))):
            raise ScheduleError("a function of numbers cannot take a tensor")
        return CallEffects()
    signature = _signature(target)
    tensors = dict(signature.tensors(args, kwargs))
    held = {name: storages_of(arg) for name, arg in tensors.items()}
    for parameter in signature.written:
        if not held.get(parameter, True) and ref_names(tensors[parameter]):
            raise ScheduleError("the operator writes a value that has no memory")
    read = tuple(dict.fromkeys(s for name in signature.read for s in held.get(name, ())))
    written = [s for name in signature.written for s in held.get(name, ())]
    results: list[Storages] = []
    fresh: list[str] = []
    for i, result in enumerate(signature.results):
        aliases, is_new = result.resolved(copies)
        # PyTorch makes a tensor of a number, so a view of one is new memory.
        is_new |= any(isinstance(tensors.get(name), (int, float, complex)) for name in aliases)
        new = (name if len(signature.results) == 1 else f"{name}.{i}",) if is_new else ()
        fresh += new
        results.append((*(s for name in aliases for s in held.get(name, ())), *new))
    accesses = bool(written or fresh or not signature.reads_no_data)
    return CallEffects(
        reads=read if accesses else (),
        writes=tuple(dict.fromkeys((*written, *fresh))),
        allocates=tuple(fresh),
        results=tuple(results),
        grows=bool(fresh) and signature.returns_list,
        lists=signature.lists if len(signature.results) > 1 else frozenset(),
        ordered=signature.ordered,
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """The parameters that a result may alias, and whether it may be new memory.

    Attributes:
        is_either: whether not even the graph says which of them it is in a call.
    """

    aliases: tuple[str, ...]
    is_new: bool
    is_either: bool = False

    def resolved(self, copies: bool | None) -> tuple[tuple[str, ...], bool]:
        """The aliases and whether it is new, given whether the operator returns a copy."""
        if copies is None or self.is_either or not (self.aliases and self.is_new):
            return self.aliases, self.is_new
        return ((), True) if copies else (self.aliases, False)


@dataclass(frozen=True, slots=True)
class _Signature:
    """The parts of an operator's schema that say what it does to memory.

    Attributes:
        n_positional: the number of positional parameters, which come first.
        names: all its parameters, in order.
        taking_tensors: the position of each parameter that takes tensors.
        read: those of which it may read the data.
        written: the parameters that it writes.
        results: its results.
        returns_list: whether it returns one list of tensors.
        lists: which of its results are lists of tensors.
        reads_no_data: whether it launches nothing unless it writes: a view, or a query of sizes.
        ordered: whether it draws random numbers, or may have side effects: it returns nothing, or
            is a custom operator.
    """

    n_positional: int
    names: tuple[str, ...]
    taking_tensors: Mapping[str, int]
    read: tuple[str, ...]
    written: tuple[str, ...]
    results: tuple[_Result, ...]
    returns_list: bool
    lists: frozenset[int]
    reads_no_data: bool
    ordered: bool

    def tensors(self, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> Iterator[tuple[str, Arg]]:
        """The arguments that may be tensors: (parameter, argument)."""
        if len(args) > self.n_positional or not kwargs.keys() <= set(self.names[len(args) :]):
            raise ScheduleError("the operator does not take these arguments")
        for name, position in self.taking_tensors.items():
            if name in kwargs:
                yield name, kwargs[name]
            elif position < len(args):
                yield name, args[position]


@cache
def _signature(op: OpOverload) -> _Signature:
    schema = schema_of(op)
    if schema.name in _REPLACES_STORAGE:
        raise ScheduleError("the operator replaces the storage of a tensor, which is not supported")
    if op.namespace in _COLLECTIVES:
        raise ScheduleError("the operator is a collective, which no emitted module has")
    if op.namespace == _STREAM_NAMESPACE:
        raise ScheduleError("the operator chooses a stream, which only `with` may do here")
    if any(_is_of_any_type(value.type) for value in (*schema.arguments, *schema.returns)):
        raise ScheduleError("the operator takes or returns values of any type: not supported")
    annotated = [r.alias_info is not None and not r.alias_info.is_write for r in schema.returns]
    is_view = op in _UNDECLARED_VIEWS or (bool(annotated) and all(annotated))
    takes_tensors = {p.name: i for i, p in enumerate(schema.arguments) if "Tensor" in str(p.type)}
    n_unread = 1 if is_factory(op) else 0
    return _Signature(
        n_positional=sum(not p.kwarg_only for p in schema.arguments),
        names=tuple(p.name for p in schema.arguments),
        taking_tensors=takes_tensors,
        read=tuple(name for name, i in takes_tensors.items() if i >= n_unread),
        written=tuple(p.name for p in schema.arguments if _is_written(op, p)),
        results=tuple(_result(op, returned) for returned in schema.returns),
        returns_list=[str(r.type) for r in schema.returns] == ["List[Tensor]"],
        lists=frozenset(i for i, r in enumerate(schema.returns) if str(r.type) == "List[Tensor]"),
        reads_no_data=is_view or schema.name in _METADATA_ONLY,
        ordered=op.namespace != _KERNELS
        and (_draws(op) or not schema.returns or not _is_pytorchs(op)),
    )


def _is_pytorchs(op: OpOverload) -> bool:
    return op.namespace in _PYTORCH_NAMESPACES or schema_of(op).name in _OF_ONEDNN


def _draws(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _is_of_any_type(kind: Any) -> bool:
    """Whether a type has a variable in it, as TorchScript's operators on lists do."""
    inner = getattr(kind, "getElementType", lambda: None)()
    return kind.kind() in ("VarType", "AnyType") or (inner is not None and _is_of_any_type(inner))


def _is_written(op: OpOverload, parameter: Any) -> bool:
    declared = parameter.alias_info is not None and parameter.alias_info.is_write
    undeclared = schema_of(op).name in _UNDECLARED_WRITES and parameter.name in _UNDECLARED_WRITTEN
    return declared or undeclared


def _result(op: OpOverload, returned: Any) -> _Result:
    """A result by its schema; that of a composite operator may be a view or a copy all the same."""
    arguments = schema_of(op).arguments
    tensors = tuple(p.name for p in arguments if "Tensor" in str(p.type))
    alias = returned.alias_info
    if "Tensor" not in str(returned.type):
        return _Result((), is_new=False)
    if op in _UNDECLARED_VIEWS:
        return _Result(tensors, is_new=False)
    if schema_of(op).name in _UNDECLARED_RETURNS_OF_AN_ARGUMENT:
        return _Result(tensors[:1], is_new=True, is_either=True)
    if is_composite(op) and not (alias is not None and alias.is_write):
        return _Result(tensors, is_new=True)
    if alias is None:
        return _Result((), is_new=True)
    # the schema of a list of views says that it aliases, but not which parameter
    shared = {p.name: p.alias_info.before_set for p in arguments if p.alias_info is not None}
    named = [name for name, aliases in shared.items() if aliases & alias.before_set]
    return _Result(tuple(named or shared), is_new=False)
