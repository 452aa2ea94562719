"""What a virtual device remembers: its captures, and for each thread where it launches to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from nimble_fx.devices.virtual.launch import Draw
from nimble_fx.devices.virtual.memory import Pool, poison
from nimble_fx.devices.virtual.queues import Choose, Queues
from nimble_fx.torch_internals.names import disable_modes


class Recorded:
    """A capture: queues that are played again and again, on the memory that they were given."""

    def __init__(self, origin: int, pool: Pool) -> None:
        self.origin, self.pool = origin, pool
        self.queues = Queues()
        self.draws: list[Draw] = []
        self.members = {origin}
        self.blocks: list[torch.Tensor] = []
        self.generator = torch.get_rng_state()
        self.is_broken = False

    def check(self) -> None:
        """Refuses a capture that ends with loose ends.

        Raises:
            RuntimeError: a stream is not joined, or the host wanted to wait in between.
        """
        if self.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        if lost := self.queues.unjoined(self.origin):
            raise RuntimeError(f"capture ends with unjoined work on streams {sorted(lost)}")

    def launch(self, choose: Choose) -> Callable[[], None]:
        """One more run, as a kernel: in another order, on random numbers that are the next ones.

        Its memory holds poison where nothing is written yet.
        """
        states = [draw.take_turn() for draw in self.draws]

        def kernel() -> None:
            for draw, state in zip(self.draws, states, strict=True):
                draw.state = state
            for block in self.blocks:
                poison(block)
            self.queues.play(choose)

        return kernel


class Host(threading.local):
    """What a thread has entered: streams, by number, and pools. Outside of all it is on stream 0.

    Attributes:
        pool: where memory outside of captures is from.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._entered = [0]

    @property
    def current(self) -> int:
        """The stream that operators go to."""
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
        """Makes the stream the current one that was so before `enter`."""
        self._entered.pop()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Within, the thread is outside of all streams: operators run at once."""
        before, self._entered = self._entered, [0]
        try:
            with disable_modes():
                yield
        finally:
            self._entered = before

    @contextmanager
    def using(self, pool: Pool) -> Iterator[None]:
        """Within, memory outside of captures is from a pool."""
        before, self.pool = self.pool, pool
        try:
            yield
        finally:
            self.pool = before
