"""Backwards of a batch of gradients: `torch.autograd.grad(..., is_grads_batched=True)`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.fallback import AS_TRACED, Fallback, Reporter
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.names import is_legacy_batched

_GRADIENT = "tangents"
"""The prefix of AOTAutograd's names for the gradients of outputs, as inputs of a backward."""


def with_batched_gradients(
    run: Boxed, traced: GraphModule, name: str, as_traced: Boxed, reporter: Reporter
) -> Boxed:
    """The backward, which runs as it was traced if the gradients of its outputs are batched.

    Batched gradients have no memory that a kernel or a captured graph could read, only rules for
    each ATen operator (`torch._vmap_internals`).

    Args:
        run: the scheduled backward.
        traced: its ATen graph.
        name: the program's name.
        as_traced: runs that graph operator by operator.
        reporter: lists the fallback at the first such call.
    """
    names = [node.name for node in traced.graph.find_nodes(op="placeholder")]
    gradients = [i for i, name in enumerate(names) if name.startswith(_GRADIENT)]
    reason = (
        "is_grads_batched or a vectorized jacobian asks for the gradients of many outputs at once"
    )
    fallback = Fallback(name, AS_TRACED, reason)

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        for i in gradients:
            if isinstance(args[i], Tensor) and is_legacy_batched(args[i]):
                reporter.report(fallback)
                return as_traced(args)
        return run(args)

    return call
