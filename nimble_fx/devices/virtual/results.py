"""What an operator returns for arguments of given types, known before its kernel has run.

Fake tensors do not say it: of some operators they have another dtype, shape or stride than the
kernels make. So PyTorch's own operators are run once on made-up values for each signature:
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
from nimble_fx.torch_internals.operators import schema_of
from nimble_fx.torch_internals.storages import storage_key, with_math_bits

_NEED_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_MAX_SIGNATURES = 8192
_COUNT_FROM_ONE = {"LU_pivots", "pivots"}
"""Parameters with LAPACK's indices, which it does not check; all other indices count from zero."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a tensor is besides its values.

    Attributes:
        nbytes: of its storage.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: Tensor) -> "Geometry":
        return Geometry(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.untyped_storage().nbytes(),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        """Such a tensor in a storage."""
        bare = torch.empty(0, dtype=self.dtype, device="cpu")
        bare.set_(storage, self.offset, self.shape, self.stride)
        return with_math_bits(bare, self.is_conj, self.is_neg)

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor is like this one; the stride of a lone element says nothing."""
        if tensor.dtype != self.dtype or tuple(tensor.shape) != self.shape:
            return False
        steps = zip(self.shape, self.stride, tensor.stride(), strict=True)
        return 0 in self.shape or all(ours == theirs for n, ours, theirs in steps if n > 1)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)} and strides {list(self.stride)}"


@dataclass(frozen=True, slots=True)
class Result:
    """One of an operator's results.

    Attributes:
        value: what it is if it is no tensor.
        geometry: what it is if it is one.
        home: the position among the tensors of the arguments of the one whose memory it lies in;
            None for memory of its own.
        is_argument: whether it is that very tensor.
    """

    value: Any = None
    geometry: Geometry | None = None
    home: int | None = None
    is_argument: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether it is a tensor in memory of its own."""
        return self.geometry is not None and self.home is None


@dataclass(frozen=True, slots=True)
class Returned:
    """What an operator returns: its results, and how they are nested."""

    results: tuple[Result, ...]
    nesting: Any

    @property
    def is_view(self) -> bool:
        """Whether all of it lies in the memory of the arguments."""
        return bool(self.results) and all(result.home is not None for result in self.results)

    def unlike(self, made: Any) -> str | None:
        """How what a kernel has made differs from this; None if it does not."""
        values = pytree.tree_leaves(made)
        if len(values) != len(self.results):
            return f"it returns {len(values)} results, not {len(self.results)}"
        for k, (value, result) in enumerate(zip(values, self.results, strict=True)):
            if result.home is None and not _is(value, result):
                return f"its result {k} is {_described(value)}, not {_promised(result)}"
        return None


_known: OrderedDict[Any, Returned | None] = OrderedDict()


def returned_by(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned | None:
    """What an operator returns for such arguments; None if that depends on their values."""
    modes = torch.get_default_dtype(), torch.is_grad_enabled(), torch.backends.mkldnn.enabled
    signature = (func, modes, _key(args), _key(kwargs))
    if signature in _known:
        _known.move_to_end(signature)
        return _known[signature]
    with disable_modes():
        returned = _learn(func, args, kwargs)
    _known[signature] = returned
    if len(_known) > _MAX_SIGNATURES:
        _known.popitem(last=False)
    return returned


def _learn(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned | None:
    """Runs an operator of PyTorch on made-up values, if it does nothing but return results.

    Of all others, and where made-up values are not good enough, fake tensors must say it.
    """
    promised, error = None, None
    try:
        promised = _of_fakes(func, args, kwargs)
    except _NEED_VALUES:
        return None
    except Exception as raised:  # some kernels take what their fakes do not
        error = raised
    if func.namespace in {"aten", "prims"} and schema_of(func).returns:
        try:
            return _rehearsed(func, args, kwargs)
        except Exception as raised:
            error = raised
    if promised is None and error is not None:
        raise error
    return promised


def _of_fakes(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned:
    with FakeTensorMode() as mode:
        return _run(func, args, kwargs, lambda tensor, _: _fake(mode, tensor))


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    with mode:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )


def _rehearsed(func: Any, args: Any, kwargs: dict[str, Any]) -> Returned:
    generator = torch.get_rng_state()
    try:
        return _run(func, args, kwargs, _made_up)
    finally:
        torch.set_rng_state(generator)


def _made_up(tensor: Tensor, counts_from_one: bool) -> Tensor:
    """Such a tensor of ones, or of zeros if it may hold indices: those are in range."""
    nbytes = tensor.untyped_storage().nbytes()
    storage = torch.zeros(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
    same = Geometry.of(tensor).on(storage)
    whole = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage)
    is_number = tensor.is_floating_point() or tensor.is_complex()
    whole.fill_(1 if is_number or counts_from_one else 0)
    return same


def _run(
    func: Any, args: Any, kwargs: dict[str, Any], stand_in: Callable[[Tensor, bool], Tensor]
) -> Returned:
    """What an operator returns for other tensors of the same types."""
    given: list[Tensor] = []
    from_one = _pivots(func, args, kwargs)

    def replaced(tensor: Tensor) -> Tensor:
        given.append(stand_in(tensor, id(tensor) in from_one))
        return given[-1]

    args, kwargs = pytree.tree_map_only(Tensor, replaced, (args, kwargs))
    homes = {storage_key(tensor): k for k, tensor in reversed([*enumerate(given)])}
    offsets = [int(tensor.storage_offset()) for tensor in given]
    values, nesting = pytree.tree_flatten(func(*args, **kwargs))
    return Returned(tuple([_result(value, given, homes, offsets) for value in values]), nesting)


def _result(
    value: Any, given: Sequence[Tensor], homes: Mapping[int, int], offsets: Sequence[int]
) -> Result:
    """One of an operator's results; one in an argument's memory has its offset from there."""
    if not isinstance(value, Tensor):
        return Result(value)
    geometry, home = Geometry.of(value), homes.get(storage_key(value))
    if home is None:
        return Result(geometry=geometry)
    shifted = replace(geometry, offset=geometry.offset - offsets[home])
    same = next((k for k, tensor in enumerate(given) if tensor is value), None)
    return Result(None, shifted, home if same is None else same, same is not None)


def _pivots(func: Any, args: Any, kwargs: dict[str, Any]) -> set[int]:
    """The arguments that hold LAPACK's indices."""
    parameters = [parameter.name for parameter in schema_of(func).arguments]
    named = {**dict(zip(parameters, args, strict=False)), **kwargs}
    return {id(value) for name, value in named.items() if name in _COUNT_FROM_ONE}


def _key(value: Any) -> Any:
    """What of an argument the results may depend on, as far as it is known before kernels run."""
    if isinstance(value, Tensor):
        return Geometry.of(value)
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key(item)) for name, item in value.items()])
    return type(value), value


def _is(value: Any, result: Result) -> bool:
    if isinstance(value, Tensor) and result.geometry is not None:
        return result.geometry.fits(value)
    return result.geometry is None and type(value) is type(result.value) and value == result.value


def _described(value: Any) -> str:
    return str(Geometry.of(value)) if isinstance(value, Tensor) else repr(value)


def _promised(result: Result) -> str:
    return str(result.geometry or result.value)
