"""How a program runs at the moment."""

from dataclasses import dataclass


@dataclass
class CaptureStatus:
    """Whether a program is frozen, and if not, why.

    Attributes:
        reason: why it is not frozen, or why some calls run unfrozen all the same.
        n_captures: how many times it was captured.
        n_graphs: how many of these captures are kept.
        nbytes: the memory of the pool that these share with those of its backward or forward, in
            bytes for each stream.
    """

    reason: str | None = None
    n_captures: int = 0
    n_graphs: int = 0
    nbytes: tuple[int, ...] = ()

    @property
    def frozen(self) -> bool:
        """Whether there is a capture of it."""
        return self.n_graphs > 0
