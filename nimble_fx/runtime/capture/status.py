"""The current state of a program's captures."""

from dataclasses import dataclass


@dataclass
class CaptureStatus:
    """Whether a program is frozen, and if not, why not.

    Attributes:
        reason: why it is not frozen, or why some of its calls run unfrozen.
        n_captures: how many times it was captured.
        n_graphs: how many captured graphs it has now.
        nbytes: the memory of the pools of these graphs, which its backward or forward may share, in
            bytes for each stream.
    """

    reason: str | None = None
    n_captures: int = 0
    n_graphs: int = 0
    nbytes: tuple[int, ...] = ()

    @property
    def frozen(self) -> bool:
        """Whether it has a captured graph."""
        return self.n_graphs > 0
