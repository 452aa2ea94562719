"""Eager PyTorch while PyTorch traces or compiles."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from nimble_fx.torch_internals.names import DisableAutocast, DisableTorchFunction, disable_modes


@contextmanager
def plain_eager_mode() -> Iterator[None]:
    """Disables all tracing modes, the user's modes, autocast and gradients."""
    with ExitStack() as stack:
        for context in (
            DisableTorchFunction(),  # first, because modes of the user also get calls of no_grad
            disable_modes(),
            torch.inference_mode(False),
            torch.no_grad(),
            DisableAutocast(),
        ):
            stack.enter_context(context)
        yield
