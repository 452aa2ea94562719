"""The seeds with which an attention's backward repeats the dropout of its forward.

PyTorch's memory-efficient attention stores its seeds in device memory during a capture, and in host
memory otherwise. Its backward reads them from the one or the other by whether it is captured itself
(pytorch, aten/src/ATen/native/transformers/cuda: Note [Seed and Offset Device]). But a captured
forward may have a backward that is not captured, such as a warm-up run.
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
"""The positions of the arguments `philox_seed` and `philox_offset` of attention backwards."""


def seed_inputs(graph: TaskGraph) -> frozenset[str]:
    """The names of the values that attention operators of a graph read as seeds."""
    taken = (arg for task in graph.tasks for arg in task.args[SEEDS.get(task.target, slice(0))])
    return frozenset(arg.name for arg in taken if isinstance(arg, Ref))


def with_seeds_on(device: torch.device, inputs: Sequence[Any], seeds: Collection[int]) -> list[Any]:
    """The inputs, with the seeds among them on a device, copied if necessary."""
    values = list(inputs)
    for k in seeds:
        values[k] = inputs[k].to(device)
    return values
