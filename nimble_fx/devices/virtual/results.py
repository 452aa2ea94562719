"""Predicts the types and aliases of an operator's results before its kernel runs.

Fake tensors are not enough: for some operators they have another dtype, shape or stride than the
kernels' results. So PyTorch's own operators are run once on synthetic values for each signature:
operator, types of tensors, literals.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nimble_fx.torch_internals.names import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    disable_modes,
    pytree,
)
from nimble_fx.torch_internals.operators import (
    arguments_by_name,
    does_what_its_schema_says,
    is_kernel,
    reads_opaque_memory,
    schema_of,
)
from nimble_fx.torch_internals.storages import storage_key
from nimble_fx.torch_internals.tensor_metadata import TensorMetadata

_NEED_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_MAX_SIGNATURES = 8192
_ONE_BASED = {"LU_pivots", "pivots"}
"""Parameters with LAPACK's one-based indices, which it does not check; others are zero-based."""


@dataclass(frozen=True, slots=True)
class Result:
    """One of an operator's results.

    Attributes:
        value: the result if it is not a tensor.
        metadata: its metadata if it is a tensor; the offset of a view is relative to its base.
        nbytes: the bytes of its memory if that is new.
        base: the position, among the tensor arguments, of the one that it aliases; None for new
            memory.
        is_argument: whether it is that argument itself.
    """

    value: Any = None
    metadata: TensorMetadata | None = None
    nbytes: int = 0
    base: int | None = None
    is_argument: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether it is a tensor in new memory."""
        return self.metadata is not None and self.base is None


@dataclass(frozen=True, slots=True)
class Returned:
    """The results of an operator, and their nesting."""

    results: tuple[Result, ...]
    nesting: Any

    @property
    def is_view(self) -> bool:
        """Whether all results alias arguments."""
        return bool(self.results) and all(result.base is not None for result in self.results)

    def difference(self, value: Any) -> str | None:
        """The difference of a kernel's results from these; None if there is none."""
        values = pytree.tree_leaves(value)
        if len(values) != len(self.results):
            return f"it returns {len(values)} results, not {len(self.results)}"
        for k, (value, result) in enumerate(zip(values, self.results, strict=True)):
            if result.base is None and not _is(value, result):
                return f"its result {k} is {_described(value)}, not {_expected(result)}"
        return None


_known: OrderedDict[Any, Returned | None] = OrderedDict()


def returned_by(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned | None:
    """The results of an operator for such arguments; None if they depend on values."""
    modes = torch.get_default_dtype(), torch.is_grad_enabled(), torch.backends.mkldnn.enabled
    signature = (func, modes, _key(args), _key(kwargs))
    if signature in _known:
        _known.move_to_end(signature)
        return _known[signature]
    with disable_modes():
        returned = _find_out(func, args, kwargs)
    _known[signature] = returned
    if len(_known) > _MAX_SIGNATURES:
        _known.popitem(last=False)
    return returned


def _find_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned | None:
    """Runs an operator of PyTorch on synthetic values, if it returns anything.

    For other operators, and where synthetic values raise an error, fake tensors decide. So they do
    for Inductor's kernels: a division of integers by zero would end the process.
    """
    fake_results, error = None, None
    try:
        fake_results = _of_fakes(func, args, kwargs)
    except _NEED_VALUES:
        return None
    except Exception as raised:  # some kernels accept arguments that their fakes do not
        error = raised
    may_run = does_what_its_schema_says(func) and not reads_opaque_memory(func)
    if may_run and not is_kernel(func) and schema_of(func).returns:
        try:
            return _of_synthetic_values(func, args, kwargs)
        except Exception as raised:
            error = raised
    if fake_results is None and error is not None:
        raise error
    return fake_results


def _of_fakes(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned:
    with FakeTensorMode() as mode:
        return _run(func, args, kwargs, lambda tensor, _: _fake(mode, tensor))


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    with mode:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )


def _of_synthetic_values(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned:
    generator = torch.get_rng_state()
    try:
        return _run(func, args, kwargs, _synthetic)
    finally:
        torch.set_rng_state(generator)


def _synthetic(tensor: Tensor, is_one_based: bool) -> Tensor:
    """A tensor with the same metadata: of ones, or of zeros if it may be zero-based indices."""
    nbytes = tensor.untyped_storage().nbytes()
    storage = torch.zeros(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
    same = TensorMetadata.of(tensor).on(storage)
    whole = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage)
    is_number = tensor.is_floating_point() or tensor.is_complex()
    whole.fill_(1 if is_number or is_one_based else 0)
    return same


def _run(
    func: Any, args: Any, kwargs: dict[str, Any], stand_in: Callable[[Tensor, bool], Tensor]
) -> Returned:
    """The results of an operator for other tensors of the same types."""
    operands: list[Tensor] = []
    one_based = _one_based_arguments(func, args, kwargs)

    def replaced(tensor: Tensor) -> Tensor:
        operands.append(stand_in(tensor, id(tensor) in one_based))
        return operands[-1]

    args, kwargs = pytree.tree_map_only(Tensor, replaced, (args, kwargs))
    bases = {storage_key(tensor): k for k, tensor in reversed([*enumerate(operands)])}
    offsets = [int(tensor.storage_offset()) for tensor in operands]
    values, nesting = pytree.tree_flatten(func(*args, **kwargs))
    return Returned(tuple([_result(value, operands, bases, offsets) for value in values]), nesting)


def _result(
    value: Any, operands: Sequence[Tensor], bases: Mapping[int, int], offsets: Sequence[int]
) -> Result:
    """One of an operator's results."""
    if not isinstance(value, Tensor):
        return Result(value)
    metadata, base = TensorMetadata.of(value), bases.get(storage_key(value))
    if base is None:
        return Result(metadata=metadata, nbytes=value.untyped_storage().nbytes())
    shifted = replace(metadata, offset=metadata.offset - offsets[base])
    same = next((k for k, tensor in enumerate(operands) if tensor is value), None)
    base = base if same is None else same
    return Result(metadata=shifted, base=base, is_argument=same is not None)


def _one_based_arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> set[int]:
    """The ids of the arguments with LAPACK's one-based indices."""
    named = arguments_by_name(func, args, kwargs)
    return {id(value) for name, value in named.items() if name in _ONE_BASED}


def _key(value: Any) -> Any:
    """The part of an argument that results may depend on and that is known before kernels run."""
    if isinstance(value, Tensor):
        return TensorMetadata.of(value), value.untyped_storage().nbytes()
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key(item)) for name, item in value.items()])
    return type(value), value if value == value else repr(value)  # NaN is no key


def _is(value: Any, result: Result) -> bool:
    if isinstance(value, Tensor) and result.metadata is not None:
        return _fits(value, result.metadata)
    return result.metadata is None and type(value) is type(result.value) and value == result.value


def _fits(tensor: Tensor, metadata: TensorMetadata) -> bool:
    """Whether types, shapes and strides are equal; strides of dimensions of size 1 do not count."""
    if tensor.dtype != metadata.dtype or tuple(tensor.shape) != metadata.shape:
        return False
    steps = zip(metadata.shape, metadata.stride, tensor.stride(), strict=True)
    return 0 in metadata.shape or all(ours == theirs for n, ours, theirs in steps if n > 1)


def _described(value: Any) -> str:
    return str(TensorMetadata.of(value)) if isinstance(value, Tensor) else repr(value)


def _expected(result: Result) -> str:
    return str(result.metadata or result.value)
