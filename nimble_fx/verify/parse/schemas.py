"""What an operator does to memory, as far as its schema tells: for proofs from a text alone.

It shares nothing with `trace`, which reads schemas too: one must not repeat the other's mistakes.
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

Storages = tuple[str, ...]

_aten = torch.ops.aten
_UNDECLARED_VIEWS = {
    _aten._lazy_clone.default,
    _aten._unsafe_view.default,
    _aten.lift.default,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
    torch.ops.inductor._reinterpret_tensor.default,
}
_RETURN_THEIR_FIRST_OR_A_COPY = {
    "aten::_test_optional_filled_intlist",
    "aten::_test_optional_floatlist",
    "aten::_test_optional_intlist",
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
_GIVES_OTHER_MEMORY = {
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
_OF_PYTORCH = ("aten", "prims")
_CHOOSE_STREAMS = "streams"
_COLLECTIVES = {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"}


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call does to memory; the first three are as in `Task`.

    Attributes:
        results: the storages that each of its results lies in.
        grows: whether its result is a list of new tensors, whose length the schema does not say.
        lists: which of several results are such lists.
        ordered: whether it draws random numbers, or may do more than its schema says.
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
) -> Effects:
    """What a call does to memory. Functions of numbers do nothing.

    Args:
        target: what is called.
        name: what its new storages are named after.
        args: positional arguments.
        kwargs: keyword arguments.
        storages_of: the storages of the tensors in an argument.
        copies: whether an operator that may return a view or a copy makes a copy. None: nobody
            knows, so that it is taken to do both.

    Raises:
        ScheduleError: the schema does not fit the call, or does not tell.
    """
    if not isinstance(target, OpOverload):
        if storages_of((args, tuple(kwargs.values()))):
            raise ScheduleError("a function of numbers is given a tensor")
        return Effects()
    signature = _signature(target)
    taken = dict(signature.tensors(args, kwargs))
    held = {name: storages_of(arg) for name, arg in taken.items()}
    for parameter in signature.written:
        if not held.get(parameter, True) and ref_names(taken[parameter]):
            raise ScheduleError("the operator writes a value that has no memory")
    given = tuple(dict.fromkeys(s for storages in held.values() for s in storages))
    written = [s for name in signature.written for s in held.get(name, ())]
    results: list[Storages] = []
    fresh: list[str] = []
    for i, result in enumerate(signature.results):
        lies_in, is_new = result.decided(copies)
        new = (name if len(signature.results) == 1 else f"{name}.{i}",) if is_new else ()
        fresh += new
        results.append((*(s for name in lies_in for s in held.get(name, ())), *new))
    touches = bool(written or fresh or not signature.only_looks)
    return Effects(
        reads=given if touches else (),
        writes=tuple(dict.fromkeys((*written, *fresh))),
        allocates=tuple(fresh),
        results=tuple(results),
        grows=bool(fresh) and signature.returns_list,
        lists=signature.lists if len(signature.results) > 1 else frozenset(),
        ordered=signature.ordered,
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """One result: the parameters whose memory it may lie in, and whether it may be new.

    Attributes:
        is_either: whether nobody can tell which.
    """

    lies_in: tuple[str, ...]
    is_new: bool
    is_either: bool = False

    def decided(self, copies: bool | None) -> tuple[tuple[str, ...], bool]:
        """The same, once it is known whether it is a copy."""
        if copies is None or self.is_either or not (self.lies_in and self.is_new):
            return self.lies_in, self.is_new
        return ((), True) if copies else (self.lies_in, False)


@dataclass(frozen=True, slots=True)
class _Signature:
    """An operator's schema, in the words of memory.

    Attributes:
        n_positional: how many parameters it takes without a keyword; they come first.
        names: all its parameters, in order.
        taking_tensors: the position of each that takes tensors.
        written: the names of those that it writes.
        results: what it returns.
        returns_list: whether that is one list of tensors.
        lists: which of its results are lists of tensors.
        only_looks: whether it launches nothing unless it writes: a view, or a question of size.
        ordered: whether it draws random numbers, or may do more than it says: it returns nothing,
            or is not of PyTorch.
    """

    n_positional: int
    names: tuple[str, ...]
    taking_tensors: Mapping[str, int]
    written: tuple[str, ...]
    results: tuple[_Result, ...]
    returns_list: bool
    lists: frozenset[int]
    only_looks: bool
    ordered: bool

    def tensors(self, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> Iterator[tuple[str, Arg]]:
        """Each argument that may be tensors, by its parameter."""
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
    if schema.name in _GIVES_OTHER_MEMORY:
        raise ScheduleError("the operator gives a tensor other memory, which cannot be followed")
    if op.namespace in _COLLECTIVES:
        raise ScheduleError("the operator is a collective, which no emitted module has")
    if op.namespace == _CHOOSE_STREAMS:
        raise ScheduleError("the operator chooses a stream, which only `with` may do here")
    if any(_is_of_any_type(value.type) for value in (*schema.arguments, *schema.returns)):
        raise ScheduleError("the operator is one on lists of anything, which cannot be followed")
    annotated = [r.alias_info is not None and not r.alias_info.is_write for r in schema.returns]
    is_view = op in _UNDECLARED_VIEWS or (bool(annotated) and all(annotated))
    return _Signature(
        n_positional=sum(not p.kwarg_only for p in schema.arguments),
        names=tuple(p.name for p in schema.arguments),
        taking_tensors={
            p.name: i for i, p in enumerate(schema.arguments) if "Tensor" in str(p.type)
        },
        written=tuple(p.name for p in schema.arguments if _is_written(op, p)),
        results=tuple(_result(op, returned) for returned in schema.returns),
        returns_list=[str(r.type) for r in schema.returns] == ["List[Tensor]"],
        lists=frozenset(i for i, r in enumerate(schema.returns) if str(r.type) == "List[Tensor]"),
        only_looks=is_view or schema.name in _METADATA_ONLY,
        ordered=_draws(op) or not schema.returns or op.namespace not in _OF_PYTORCH,
    )


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
    """A composite operator may return a view or a copy, whatever its schema says of its result."""
    arguments = schema_of(op).arguments
    tensors = tuple(p.name for p in arguments if "Tensor" in str(p.type))
    alias = returned.alias_info
    if "Tensor" not in str(returned.type):
        return _Result((), is_new=False)
    if op in _UNDECLARED_VIEWS:
        return _Result(tensors, is_new=False)
    if schema_of(op).name in _RETURN_THEIR_FIRST_OR_A_COPY:
        return _Result(tensors[:1], is_new=True, is_either=True)
    if is_composite(op) and not (alias is not None and alias.is_write):
        return _Result(tensors, is_new=True)
    if alias is None:
        return _Result((), is_new=True)
    # a list of views says that it aliases, but not what
    shared = {p.name: p.alias_info.before_set for p in arguments if p.alias_info is not None}
    named = [name for name, aliases in shared.items() if aliases & alias.before_set]
    return _Result(tuple(named or shared), is_new=False)
