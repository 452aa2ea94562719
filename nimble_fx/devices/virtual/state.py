"""The state of a virtual device: its captures, and the current stream of each thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from nimble_fx.devices.virtual.launch import Draw
from nimble_fx.devices.virtual.memory import Pool, poison
from nimble_fx.devices.virtual.queues import Choose, Queues
from nimble_fx.torch_internals.names import disable_modes


class VirtualCapture:
    """A capture: queues that each replay runs again, in the same memory."""

    def __init__(self, origin: int, pool: Pool) -> None:
        self.origin, self.pool = origin, pool
        self.queues = Queues()
        self.draws: list[Draw] = []
        self.members = {origin}
        self.blocks: list[torch.Tensor] = []
        self.generator = torch.get_rng_state()
        self.is_broken = False

    def check(self) -> None:
        """Checks that the capture is complete.

        Raises:
            RuntimeError: a stream is not joined, or the host tried to synchronize during capture.
        """
        if self.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        if lost := self.queues.unjoined(self.origin):
            raise RuntimeError(f"capture ends with unjoined work on streams {sorted(lost)}")

    def launch(self, choose: Choose) -> Callable[[], None]:
        """A replay as a kernel: it runs in a new order, with new random numbers.

        Its memory is poisoned first, because a replay may not rely on earlier contents.
        """
        states = [draw.reserve() for draw in self.draws]

        def kernel() -> None:
            for draw, state in zip(self.draws, states, strict=True):
                draw.state = state
            for block in self.blocks:
                poison(block)
            self.queues.run(choose)

        return kernel


class ThreadState(threading.local):
    """The streams that a thread has entered, and its pool. Outside of all it is on stream 0.

    Attributes:
        pool: the pool for memory outside of captures.
        scratch: the pool of all programs that are not being captured, at this level: programs that
            a kernel runs have another than those whose kernel it is.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = self.scratch = pool
        self._entered = [0]

    @property
    def current(self) -> int:
        """The stream that operators are launched on."""
        return self._entered[-1]

    @current.setter
    def current(self, stream: int) -> None:
        self._entered[-1] = stream

    @property
    def is_inside(self) -> bool:
        """Whether the thread has entered a stream."""
        return len(self._entered) > 1

    def enter(self, stream: int) -> None:
        """Makes a stream the current one."""
        self._entered.append(stream)

    def leave(self) -> None:
        """Returns to the stream that was current before `enter`."""
        self._entered.pop()

    @contextmanager
    def outside(self, pool: Pool) -> Iterator[None]:
        """Leaves all streams within the block, so that operators run at once.

        Args:
            pool: for programs that kernels run within the block.
        """
        before, before_pools = self._entered, (self.pool, self.scratch)
        self._entered, self.pool, self.scratch = [0], pool, pool
        try:
            with disable_modes():
                yield
        finally:
            self._entered, (self.pool, self.scratch) = before, before_pools

    @contextmanager
    def using(self, pool: Pool) -> Iterator[None]:
        """Allocates memory outside of captures from a pool within the block."""
        before, self.pool = self.pool, pool
        try:
            yield
        finally:
            self.pool = before
