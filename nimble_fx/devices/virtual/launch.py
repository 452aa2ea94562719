"""What happens to an operator on a virtual stream: its results get memory, its kernel is queued."""

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_stack
from typing import Any, Protocol

import torch
from torch import Tensor

from nimble_fx.devices.virtual.memory import POISON, not_owning
from nimble_fx.devices.virtual.queues import Kernel
from nimble_fx.devices.virtual.results import Geometry, Result, Returned, returned_by
from nimble_fx.errors import OperatorError
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.names import TorchDispatchMode, pytree
from nimble_fx.torch_internals.operators import is_composite, schema_of

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
        self._queue = queue

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
        """The host needs what the operator computes: it waits for all that comes before."""
        self._queue.wait_for_values()
        return pytree.tree_map_only(Tensor, self._upload, func(*args, **kwargs))

    def _later(self, func: Any, args: Any, kwargs: dict[str, Any], returned: Returned) -> Any:
        """Results whose memory the operator will write, unless they lie in its arguments'."""
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        results = [self._result(result, given) for result in returned.results]
        fresh = {k: results[k] for k, result in enumerate(returned.results) if result.is_fresh}
        self._enqueue(func, args, kwargs, returned, fresh)
        return pytree.tree_unflatten(results, returned.nesting)

    def _result(self, result: Result, given: Sequence[Tensor]) -> Any:
        if result.geometry is None:
            return result.value
        if result.home is None:
            return self._allocate(result.geometry)
        home = given[result.home]
        return home if result.is_argument else _placed_in(home, result.geometry)

    def _enqueue(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        returned: Returned,
        fresh: dict[int, Tensor],
    ) -> None:
        """Queues the kernel. It holds on to no memory of the device, as a launch does not."""
        args, kwargs = pytree.tree_map_only(Tensor, self._not_owning, (args, kwargs))
        outputs = {k: self._not_owning(tensor) for k, tensor in fresh.items()}

        file, line = _launching_line()

        def kernel() -> None:
            try:
                made = func(*args, **kwargs)
            except Exception as error:
                where = f"launched at {file}:{line}: {_code(file, line)}"
                error.add_note(f"This was in a kernel of {func}, {where}")
                raise
            unlike = returned.unlike(made)
            if unlike is not None:
                raise OperatorError(
                    f"{func} does not return what it says for arguments of these types: {unlike}; "
                    f"if it is yours, mend what is registered for its fake tensors "
                    f"[{file}:{line}: {_code(file, line)}]"
                )
            results = pytree.tree_leaves(made)
            for k, output in outputs.items():
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

    def _allocate(self, geometry: Geometry) -> Tensor:
        """A tensor in memory of the current stream."""
        if geometry.nbytes == 0:
            return torch.empty_strided(
                geometry.shape, geometry.stride, dtype=geometry.dtype, device="cpu"
            )
        return geometry.on(self._queue.allocate(geometry.nbytes))

    def _upload(self, tensor: Tensor) -> Tensor:
        return self._allocate(Geometry.of(tensor)).copy_(tensor)

    def _not_owning(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if self._queue.keeps(tensor) else not_owning(tensor)


_TORCH, _DEVICES = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])


def _launching_line() -> tuple[str, int]:
    """The file and line outside of PyTorch and of this device that call an operator."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(None))
    outside = (at for at in frames if not at[0].startswith((_TORCH, _DEVICES)))
    return next(outside, ("?", 0))


def _code(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


def _placed_in(tensor: Tensor, geometry: Geometry) -> Tensor:
    """A view of an argument, with its offset from there."""
    offset = int(tensor.storage_offset()) + geometry.offset
    return tensor.as_strided(geometry.shape, geometry.stride, offset)
