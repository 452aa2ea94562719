"""Eager PyTorch while PyTorch traces or compiles."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from nimble_fx.torch_internals.names import (
    DisableAutocast,
    DisablePythonDispatcher,
    DisableTorchFunction,
    disable_modes,
)


@contextmanager
def plain_eager_mode() -> Iterator[None]:
    """Disables all tracing modes, the user's modes, inference mode, autocast and gradients.

    Also Python's dispatcher, with which PyTorch traces: its views have other strides than C++'s in
    dimensions of size 1.
    """
    with ExitStack() as stack:
        for context in (
            DisableTorchFunction(),  # first, because modes of the user also get calls of no_grad
            disable_modes(),
            DisablePythonDispatcher(),
            torch.inference_mode(False),
            torch.no_grad(),
            DisableAutocast(),
        ):
            stack.enter_context(context)
        yield
