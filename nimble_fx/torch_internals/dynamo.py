"""Private names of Dynamo and AOTAutograd. Importing them takes a second."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from nimble_fx.torch_internals.names import lookup

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
    "hooks_guarded",
    "is_wrapped_for_nothing",
    "lookup_backend",
    "register_backend",
    "why_not_alone",
    "writes_inputs",
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


def writes_inputs(metadata: ViewAndMutationMeta | None) -> bool:
    """Whether a graph writes to its inputs, or to their metadata; True if that is not known."""
    if metadata is None:
        return True
    return any(each.mutates_data or each.mutates_metadata for each in metadata.input_info)


_NEW = ("AttributeMutationNew", "ValueMutationNew")


def why_not_alone(gm: GraphModule, function_name: str) -> str | None:
    """Why a call of this graph is not all that Dynamo's code for a function does; None if it is.

    To be asked while Dynamo compiles the graph.

    Args:
        gm: Dynamo's graph.
        function_name: the name of the function's code.
    """
    try:
        translator = lookup("torch._dynamo.symbolic_convert.InstructionTranslator").current_tx()
        output = translator.output
        reason: Any = gm.compile_subgraph_reason
        if translator.f_code.co_name != function_name or reason.graph_break:
            return "PyTorch compiles it in parts"
        if output.random_calls:
            return "it draws Python's random numbers"
        effects = output.side_effects
        modified = filter(effects.is_modified, effects.id_to_variable.values())
        kinds = {type(variable.mutation_type).__name__ for variable in modified}
        if kinds.difference(_NEW) or effects.tensor_hooks or effects.save_for_backward:
            return "it changes Python objects as it is called"
    except AttributeError as error:
        return f"PyTorch {torch.__version__} does not say what it does besides its graph ({error})"
    return None


@contextmanager
def hooks_guarded() -> Iterator[None]:
    """Makes Dynamo notice module hooks that are added after a compile, if it compiles within."""
    config = lookup("torch._dynamo.config")
    with config.patch(skip_nnmodule_hook_guards=False):
        yield
