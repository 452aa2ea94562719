"""Private names of Dynamo and AOTAutograd. Importing them takes a second."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nimble_fx.torch_internals.kernels.upsampling import upsampling_as_one_operator

try:
    from torch._dynamo import lookup_backend, register_backend
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import BackendCompilerFailed, ShortenTraceback
    from torch._functorch import config as _functorch_config
    from torch._functorch._aot_autograd.schemas import (
        OutputType,
        SubclassCreationMeta,
        ViewAndMutationMeta,
    )
    from torch._guards import TracingContext
except ImportError as error:
    raise ImportError(
        f"nimble_fx does not work with the compiler of PyTorch {torch.__version__}: {error}. It "
        "needs PyTorch 2.11 or newer; if yours is, look for a newer nimble_fx"
    ) from error

__all__ = [
    "BackendCompilerFailed",
    "OutputType",
    "ShortenTraceback",
    "SubclassCreationMeta",
    "TracingContext",
    "ViewAndMutationMeta",
    "aot_autograd",
    "compiling",
    "lookup_backend",
    "register_backend",
]


@contextmanager
def compiling(backward_now: bool) -> Iterator[None]:
    """AOTAutograd's settings while it compiles.

    Graphs have no effect tokens among their inputs and outputs, nor generators of random numbers,
    and upsampling is not decomposed.

    Args:
        backward_now: whether to compile a backward with its forward. Otherwise AOTAutograd does so
            in the first backward, where no lock keeps another thread from compiling.
    """
    settings = {"unlift_effect_tokens": True, "graphsafe_rng_functionalization": False}
    if backward_now:
        settings["force_non_lazy_backward_lowering"] = True
    with _functorch_config.patch(settings), upsampling_as_one_operator():
        yield
