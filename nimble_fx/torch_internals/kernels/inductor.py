"""Compiles an ATen graph with Inductor, to get its kernels and the calls to them.

Inductor's names are looked up where they are used, because importing it takes seconds.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from nimble_fx.errors import UnsupportedError
from nimble_fx.torch_internals.dynamo.names import TracingContext
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.kernels.upsampling import UPSAMPLING
from nimble_fx.torch_internals.names import FakeTensor, FakeTensorMode, lookup
from nimble_fx.torch_internals.operators import RESHAPES
from nimble_fx.torch_internals.symbolic import are_known, has_unbacked_size

_SETTINGS = {
    "allow_buffer_reuse": False,  # values that reuse memory would be ordered
    "inplace_buffers": False,
    "memory_planning": False,
    "graph_partition": False,
    "cpp_wrapper": False,
    "fallback_random": True,
    "alignment_asserts": False,
    "nan_asserts": False,
    "annotate_training": False,
    "aot_inductor.debug_intermediate_value_printer": "0",
    "cpp.descriptive_names": "original_aten",
    "generate_intermediate_hooks": False,
    "profiler_mark_wrapper_call": False,
    "triton.cudagraphs": False,
    "trace.provenance_tracking_level": 2,
}
_tracing = lookup("torch._guards.tracing")


@dataclass(frozen=True)
class InductorModule:
    """The module that Inductor wrote for a graph.

    Attributes:
        text: a Python module with a function `call`, which takes the graph's inputs.
        globals: the module's global names, including its kernels.
        origins: the names of the graph's nodes that each call to a kernel or operator computes, by
            the name in the comment above that call, such as "cpp_fused_relu_0:1".
        fake_mode: the mode of the graph's fake tensors.
    """

    text: str
    globals: Mapping[str, Any]
    origins: Mapping[str, Sequence[str]]
    fake_mode: FakeTensorMode


def compile_with_inductor(gm: GraphModule) -> InductorModule | None:
    """Compiles a graph without constants; None if it computes nothing.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`.

    Raises:
        UnsupportedError: Inductor cannot compile it; the message is the first line of its reason.

    Cost: one run of the C++ compiler or of Triton for each kernel that is not in Inductor's cache,
    in `TORCHINDUCTOR_COMPILE_THREADS` processes at a time; on a terminal Inductor shows a progress
    bar.
    """
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    mode = next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)
    if mode is None or not all(isinstance(x, FakeTensor | SymInt) for x in inputs):
        raise UnsupportedError("it takes no tensors, or numbers that are not sizes")
    if any(has_unbacked_size(node.meta.get("val")) for node in gm.graph.nodes):
        raise UnsupportedError("it has sizes that are known only once it runs")
    # First: decompositions use modules that this imports, without importing them.
    compile_fx_inner = lookup("torch._inductor.compile_fx.compile_fx_inner")
    config = lookup("torch._inductor.config")
    fresh_provenance = lookup("torch._inductor.debug.reset_provenance_globals")
    is_terminal = sys.stderr is not None and sys.stderr.isatty()  # None in a service
    wanted = {**_SETTINGS, "disable_progress": not is_terminal}
    settings = {name: value for name, value in wanted.items() if _has(config, name)}
    try:
        # A context of its own, or Inductor would report its strides to AOTAutograd, once at most.
        with config.patch(settings), fresh_provenance(), _tracing(TracingContext(mode)):
            lowered = _decomposed(gm, inputs, mode)
            if all(node.op != "call_function" for node in lowered.graph.nodes):
                return None
            compiled = compile_fx_inner(lowered, inputs)
        text: str = compiled.source_code
        module = lookup("torch._inductor.codecache.PyCodeCache.load")(text)
        origins = json.loads(compiled.inductor_provenance_stack_traces_str or "{}")
    except UnsupportedError:
        raise
    except Exception as error:  # a compiler may raise anything
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnsupportedError(f"Inductor cannot compile it: {reason:.300}") from error
    return InductorModule(text, vars(module), origins, mode)


def _decomposed(gm: GraphModule, inputs: list[Any], mode: FakeTensorMode) -> GraphModule:
    """The graph in operators for which Inductor has lowerings, as Inductor itself decomposes it."""
    with ExitStack() as stack:
        stack.enter_context(mode)
        stack.enter_context(preserve_node_meta())
        stack.enter_context(torch.no_grad())
        interpreter = Interpreter(_traced_to_names(gm))
        outputs: Any = gm.graph.output_node().args[0]

        def run(*args: Any) -> list[Any]:
            made = zip(interpreter.run(*args), outputs, strict=True)
            return [_as_promised(value, node) for value, node in made]

        decompositions = lookup("torch._inductor.decomposition.select_decomp_table")()
        upsampling = lookup("torch._decomp.get_decompositions")(UPSAMPLING)
        traced = make_fx(run, decomposition_table={**upsampling, **decompositions})(*inputs)
    with lookup("torch._inductor.virtualized.V").set_fake_mode(mode):
        lookup("torch._inductor.fx_passes.joint_graph.joint_graph_passes")(traced)
    output = traced.graph.output_node()
    returned: Any = output.args[0]
    visible = [i for i, value in enumerate(returned) if isinstance(value, Node)]
    output.meta["user_visible_output_idxs"] = visible
    made: GraphModule = traced
    return made


def _traced_to_names(gm: GraphModule) -> GraphModule:
    """A copy whose nodes have their own names as stack traces.

    Inductor collects stack traces for each kernel, and caches them with the text. If the stack
    traces were lines of code, an equal graph from another place would get the lines of the first.
    """
    named = copied(gm)
    for node, copy in zip(gm.graph.nodes, named.graph.nodes, strict=True):
        copy.meta["stack_trace"] = node.name
        if node.target in RESHAPES and _has_fixed_sizes(node.meta["val"]):
            copy.target = torch.ops.aten.reshape.default  # decompositions may make other strides
    return named


def _as_promised(made: Any, node: Any) -> Any:
    """An output with the type and strides that its node promises, where decompositions differ."""
    promised = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(promised, Tensor):
        return made
    made = made.to(promised.dtype)
    if not _has_fixed_sizes(promised):
        return made
    return made.contiguous() if promised.is_contiguous() else made


def _has_fixed_sizes(tensor: Tensor) -> bool:
    return are_known((*tensor.shape, *tensor.stride()))


def _has(config: Any, name: str) -> bool:
    first, _, rest = name.partition(".")
    return hasattr(getattr(config, first), rest) if rest else hasattr(config, first)
