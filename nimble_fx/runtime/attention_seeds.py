"""The seeds with which an attention's backward repeats the dropout of its forward.

PyTorch's memory-efficient attention keeps them in memory of the device while it is captured, and of
the host otherwise, and its backward reads them accordingly, whatever they are (pytorch,
aten/src/ATen/native/transformers/cuda: Note [Seed and Offset Device]). A captured forward may have
a backward that is not captured, such as one that warms up.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from nimble_fx.ir.task_graph import Ref, TaskGraph

_aten = torch.ops.aten

SEEDS: dict[Any, slice] = {
    _aten._efficient_attention_backward.default: slice(12, 14),
    _aten._scaled_dot_product_efficient_attention_backward.default: slice(7, 9),
}
"""The positions of their arguments `philox_seed` and `philox_offset`."""


def seed_inputs(graph: TaskGraph) -> frozenset[str]:
    """The names of the values that attentions of a graph take as seeds."""
    taken = (arg for task in graph.tasks for arg in task.args[SEEDS.get(task.target, slice(0))])
    return frozenset(arg.name for arg in taken if isinstance(arg, Ref))


def with_seeds_on(device: torch.device, inputs: Sequence[Any], seeds: Collection[int]) -> list[Any]:
    """The inputs, where those at the positions of seeds are on a device, copied if need be."""
    values = list(inputs)
    for k in seeds:
        values[k] = inputs[k].to(device)
    return values
