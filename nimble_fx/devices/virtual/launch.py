"""Launches operators on virtual streams: allocates their results and queues their kernels."""

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_stack
from typing import Any, Protocol

import torch
from torch import Tensor

from nimble_fx.devices.virtual.memory import POISON, weak_alias
from nimble_fx.devices.virtual.queues import Kernel
from nimble_fx.devices.virtual.results import Result, Returned, returned_by
from nimble_fx.errors import OperatorError
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.names import TorchDispatchMode, pytree
from nimble_fx.torch_internals.operators import (
    copies_whole_storage,
    is_composite,
    only_allocates,
    schema_of,
)
from nimble_fx.torch_internals.tensor_metadata import TensorMetadata

_DRAW_UNKNOWN_AMOUNTS = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}


class LaunchTarget(Protocol):
    """The operations of a virtual device that launches need."""

    def launch(self, kernel: Kernel) -> None:
        """Adds a kernel to the current stream."""

    def draw(self, draw: "Draw") -> None:
        """Reserves random numbers for a kernel that draws them."""

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Allocates memory on the current stream."""

    def keeps_alive(self, tensor: Tensor) -> bool:
        """Whether a queued kernel keeps a tensor's memory alive."""

    def synchronize(self) -> None:
        """Runs all queues to their ends, such as for an operator that needs values on the host."""


class Draw:
    """A kernel that draws the random numbers that are next when it is launched.

    It may run later, and after others that were launched after it. CUDA does the same by offsets
    into a sequence; here a run on ones, whose results are dropped, advances the generator. After
    operators whose data decide how many numbers they draw (`rrelu` in training, `poisson`), later
    operators draw other numbers than in eager.
    """

    def __init__(self, kernel: Kernel, advance: Callable[[], object]) -> None:
        self._kernel, self._advance = kernel, advance
        self.state = torch.get_rng_state()

    def reserve(self) -> torch.Tensor:
        """Reserves the generator's next numbers; returns the state from which they are drawn."""
        self.state = torch.get_rng_state()
        self._advance()
        return self.state

    def __call__(self) -> None:
        """Runs the kernel on the numbers that it reserved."""
        now = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            self._kernel()
        finally:
            torch.set_rng_state(now)


class LaunchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that queues operators on the current stream; views are computed at once."""

    def __init__(self, target: LaunchTarget) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._target = target

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags or are_fake(pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if is_composite(func):  # they only come here in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        if func.overloadpacket.__name__ in _DRAW_UNKNOWN_AMOUNTS:
            return self._at_once(func, args, kwargs)
        returned = returned_by(func, args, kwargs)
        if returned is None:
            return self._at_once(func, args, kwargs)
        if returned.is_view and not schema_of(func).is_mutable:
            return func(*args, **kwargs)
        return self._later(func, args, kwargs, returned)

    def _at_once(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an operator whose values the host needs, after all queues."""
        self._target.synchronize()
        return pytree.tree_map_only(Tensor, self._upload, func(*args, **kwargs))

    def _later(self, func: Any, args: Any, kwargs: dict[str, Any], returned: Returned) -> Any:
        """Queues an operator; returns results in memory that its kernel will write."""
        operands = tensors_in((args, kwargs))
        results = [self._result(result, operands) for result in returned.results]
        fresh = {k: results[k] for k, result in enumerate(returned.results) if result.is_fresh}
        self._enqueue(func, args, kwargs, returned, fresh)
        return pytree.tree_unflatten(results, returned.nesting)

    def _result(self, result: Result, operands: Sequence[Tensor]) -> Any:
        if result.metadata is None:
            return result.value
        if result.base is None:
            return self._allocate(result.metadata, result.nbytes)
        base = operands[result.base]
        return base if result.is_argument else _view_of(base, result.metadata)

    def _enqueue(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        returned: Returned,
        fresh: dict[int, Tensor],
    ) -> None:
        """Queues the kernel, which keeps no memory of the device alive, as on a GPU."""
        args, kwargs = pytree.tree_map_only(Tensor, self._weak_alias, (args, kwargs))
        outputs = {k: self._weak_alias(tensor) for k, tensor in fresh.items()}

        file, line = _launching_line()

        def kernel() -> None:
            try:
                value = func(*args, **kwargs)
            except Exception as error:
                where = f"launched at {file}:{line}: {_code(file, line)}"
                error.add_note(f"This was in a kernel of {func}, {where}")
                raise
            difference = returned.difference(value)
            if difference is not None:
                raise OperatorError(
                    f"{func} does not return what it says for arguments of these types: "
                    f"{difference}; if it is yours, correct its fake (`register_fake`) "
                    f"[{file}:{line}: {_code(file, line)}]"
                )
            results = pytree.tree_leaves(value)
            for k, output in outputs.items():
                if copies_whole_storage(func):
                    output.untyped_storage().copy_(results[k].untyped_storage())
                else:
                    output.copy_(results[k])

        def leave_as_it_is() -> None:
            for output in outputs.values():
                whole = torch.empty(0, dtype=torch.uint8, device="cpu")
                whole.set_(output.untyped_storage()).fill_(POISON)

        if only_allocates(func) and not _is_new_memory_filled():
            self._target.launch(leave_as_it_is)
        elif torch.Tag.nondeterministic_seeded in func.tags:
            ones = pytree.tree_map_only(Tensor, torch.ones_like, (args, kwargs))
            draw = Draw(kernel, lambda: func(*ones[0], **ones[1]))
            self._target.draw(draw)
            self._target.launch(draw)
        else:
            self._target.launch(kernel)

    def _allocate(self, metadata: TensorMetadata, nbytes: int) -> Tensor:
        """A new tensor in memory of the current stream."""
        if nbytes == 0:
            return torch.empty_strided(
                metadata.shape, metadata.stride, dtype=metadata.dtype, device="cpu"
            )
        return metadata.on(self._target.allocate(nbytes))

    def _upload(self, tensor: Tensor) -> Tensor:
        nbytes = tensor.untyped_storage().nbytes()
        return self._allocate(TensorMetadata.of(tensor), nbytes).copy_(tensor)

    def _weak_alias(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if self._target.keeps_alive(tensor) else weak_alias(tensor)


def _is_new_memory_filled() -> bool:
    """Whether PyTorch fills uninitialized memory, for reproducible results."""
    is_filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return torch.are_deterministic_algorithms_enabled() and bool(is_filled)


_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parents[1])


def _launching_line() -> tuple[str, int]:
    """The innermost file and line outside of PyTorch and the device packages."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(None))
    outside = (at for at in frames if not any(map(Path(at[0]).is_relative_to, _LIBRARIES)))
    return next(outside, ("?", 0))


def _code(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


def _view_of(tensor: Tensor, view: TensorMetadata) -> Tensor:
    """A view of an argument, at an offset relative to the argument's."""
    offset = int(tensor.storage_offset()) + view.offset
    return tensor.as_strided(view.shape, view.stride, offset)
