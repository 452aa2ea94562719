"""Private names of Dynamo and AOTAutograd. Importing them takes a second."""

import torch

try:
    from torch._dynamo import lookup_backend, register_backend
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import BackendCompilerFailed, ShortenTraceback
    from torch._functorch._aot_autograd.schemas import SubclassCreationMeta, ViewAndMutationMeta
    from torch._guards import TracingContext
except ImportError as error:
    raise ImportError(
        f"nimble_fx does not work with the compiler of PyTorch {torch.__version__}: {error}. It "
        "needs PyTorch 2.11 or newer; if yours is, look for a newer nimble_fx"
    ) from error

__all__ = [
    "BackendCompilerFailed",
    "ShortenTraceback",
    "SubclassCreationMeta",
    "TracingContext",
    "ViewAndMutationMeta",
    "aot_autograd",
    "lookup_backend",
    "register_backend",
]
