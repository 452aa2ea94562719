"""What happens to an operator on a virtual stream: its results get memory, its kernel is queued."""

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_stack
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.devices.virtual_memory import POISON, not_owning
from nimble_fx.devices.virtual_queues import Kernel

_NEED_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_DRAW_UNKNOWN_AMOUNTS = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}
_WRITE_NOTHING = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class Queue(Protocol):
    """What launching needs of a device."""

    def launch(self, kernel: Kernel) -> None:
        """Adds a kernel to the current stream."""

    def draw(self, draw: "Draw") -> None:
        """Lets a kernel that draws random numbers take its turn."""

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Memory of the current stream."""

    def keeps(self, tensor: Tensor) -> bool:
        """Whether a kernel keeps a tensor from being freed."""

    def wait_for_values(self) -> None:
        """Runs all queues to their ends, for an operator that needs values on the host."""


class Draw:
    """A kernel that draws random numbers: those that are next when it is launched.

    It may run later, and after others that were launched behind it. CUDA does the same by offsets
    into a sequence; here the generator is moved on by a run on ones, whose results are dropped.
    Operators that draw as many numbers as their data say (`rrelu` in training, `poisson`) leave
    those behind them other numbers than in eager.
    """

    def __init__(self, kernel: Kernel, move_on: Callable[[], object]) -> None:
        self._kernel, self._move_on = kernel, move_on
        self.state = torch.get_rng_state()

    def take_turn(self) -> torch.Tensor:
        """Reserves the generator's next numbers; the state from which they are drawn."""
        self.state = torch.get_rng_state()
        self._move_on()
        return self.state

    def __call__(self) -> None:
        """Runs the kernel on the numbers that it reserved."""
        now = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            self._kernel()
        finally:
            torch.set_rng_state(now)


class Launching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, operators are queued on the current stream; views are made at once."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue, self._fakes = queue, FakeTensorMode()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # they only come here in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        if func.overloadpacket.__name__ in _DRAW_UNKNOWN_AMOUNTS:
            return self._at_once(func, args, kwargs)
        try:
            return self._later(func, args, kwargs)
        except _NEED_VALUES:
            return self._at_once(func, args, kwargs)

    def _at_once(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The host needs what the operator computes: it waits for all that comes before."""
        self._queue.wait_for_values()
        return pytree.tree_map_only(Tensor, self._upload, func(*args, **kwargs))

    def _later(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Results whose memory the operator will write, unless they are views or sizes."""
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        fakes = [self._fake_of(tensor) for tensor in given]
        results, spec = pytree.tree_flatten(self._predict(func, args, kwargs, fakes))
        homes = [_home(result, fakes) for result in results]
        is_view = bool(results) and None not in homes
        if is_view and not func._schema.is_mutable:
            return func(*args, **kwargs)
        real = [
            result if home is _ON_HOST else self._allocate(result) if home is None
            else _placed_as(given[home], result, fakes[home])
            for result, home in zip(results, homes, strict=True)
        ]  # fmt: skip
        fresh = [k for k, home in enumerate(homes) if home is None]
        self._enqueue(func, args, kwargs, {k: real[k] for k in fresh})
        return pytree.tree_unflatten(real, spec)

    def _enqueue(
        self, func: Any, args: Any, kwargs: dict[str, Any], fresh: dict[int, Tensor]
    ) -> None:
        """Queues the kernel. It holds on to no memory of the device, as a launch does not."""
        args, kwargs = pytree.tree_map_only(Tensor, self._not_owning, (args, kwargs))
        outputs = {k: self._not_owning(tensor) for k, tensor in fresh.items()}

        file, line = _launching_line()

        def kernel() -> None:
            try:
                results = pytree.tree_leaves(func(*args, **kwargs))
            except Exception as error:
                code = linecache.getline(file, line).strip()
                error.add_note(f"This was in a kernel of {func}, launched at {file}:{line}: {code}")
                raise
            for k, output in outputs.items():
                if results[k] is not None:  # some leave out a workspace that their fake has
                    output.copy_(results[k])

        def leave_as_it_is() -> None:
            for output in outputs.values():
                whole = torch.empty(0, dtype=torch.uint8, device="cpu")
                whole.set_(output.untyped_storage()).fill_(POISON)

        if func.overloadpacket.__name__ in _WRITE_NOTHING:
            self._queue.launch(leave_as_it_is)
        elif torch.Tag.nondeterministic_seeded in func.tags:
            ones = pytree.tree_map_only(Tensor, torch.ones_like, (args, kwargs))
            draw = Draw(kernel, lambda: func(*ones[0], **ones[1]))
            self._queue.draw(draw)
            self._queue.launch(draw)
        else:
            self._queue.launch(kernel)

    def _predict(self, func: Any, args: Any, kwargs: Any, fakes: Sequence[Tensor]) -> Any:
        """What the operator would return for tensors of these shapes."""
        by_turns = iter(fakes)
        args, kwargs = pytree.tree_map_only(Tensor, lambda _: next(by_turns), (args, kwargs))
        with self._fakes:
            return func(*args, **kwargs)

    def _fake_of(self, tensor: Tensor) -> Tensor:
        with self._fakes:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )

    def _allocate(self, like: Tensor) -> Tensor:
        """A tensor in memory of the current stream, with the geometry of a fake one."""
        nbytes = like.untyped_storage().nbytes()
        if nbytes == 0:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
        empty = torch.empty(0, dtype=like.dtype, device="cpu")
        storage = self._queue.allocate(nbytes)
        return empty.set_(storage, like.storage_offset(), like.shape, like.stride())

    def _upload(self, tensor: Tensor) -> Tensor:
        return self._allocate(tensor).copy_(tensor)

    def _not_owning(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if self._queue.keeps(tensor) else not_owning(tensor)


_TORCH, _DEVICES = str(Path(torch.__file__).parent), str(Path(__file__).parent)


def _launching_line() -> tuple[str, int]:
    """The file and line outside of PyTorch and of this device that call an operator."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(None))
    outside = (at for at in frames if not at[0].startswith((_TORCH, _DEVICES)))
    return next(outside, ("?", 0))


_ON_HOST = -1


def _home(result: Any, fakes: Sequence[Tensor]) -> int | None:
    """Which argument's memory a result lies in; None for memory of its own."""
    if not isinstance(result, Tensor):
        return _ON_HOST
    storage = result.untyped_storage()._cdata
    owners = (k for k, fake in enumerate(fakes) if fake.untyped_storage()._cdata == storage)
    return next(owners, None)


def _placed_as(tensor: Tensor, result: Tensor, fake: Tensor) -> Tensor:
    """The argument `tensor` itself, or the view of it that `result` is of its fake."""
    if result is fake:
        return tensor
    offset = tensor.storage_offset() + result.storage_offset()
    return tensor.as_strided(result.shape, result.stride(), offset)


def _is_composite(func: Any) -> bool:
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))
