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
    "is_wrapped_for_nothing",
    "lookup_backend",
    "register_backend",
]

_WORK_AT_RUN_TIME = (
    "num_mutated_inp_runtime_indices",
    "mutated_graph_handled_indices_seen_by_autograd",
    "num_outputs_aliased",
    "num_intermediate_bases",
    "tokens",
    "is_rng_op_functionalized",
    "num_graphsafe_rng_states",
    "dynamic_outputs",
)
"""The fields of AOTAutograd's metadata that say what its wrapper does beside calling a graph."""


def is_wrapped_for_nothing(metadata: ViewAndMutationMeta | None) -> bool:
    """Whether AOTAutograd's wrapper of an inference graph only calls it with the same inputs."""
    if metadata is None or any(getattr(metadata, name, True) for name in _WORK_AT_RUN_TIME):
        return False
    kinds = [*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]
    return not any(isinstance(kind, SubclassCreationMeta) for kind in kinds)
