"""Runs that leave no trace in the tensors that they write to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from nimble_fx.errors import StateError


@contextmanager
def restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the values of tensors after the block, however it ends.

    Raises:
        StateError: that failed, so the model's state is not the user's any more.
    """
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        try:
            for tensor, before in zip(tensors, saved, strict=True):
                tensor.copy_(before)
        except Exception as error:
            raise StateError(
                f"buffers could not be restored to their values before a warm-up: {error}. "
                "Load the model's state again"
            ) from error
