"""Lets maximum pooling of small images on a GPU read the default memory format.

Before: z = max_pool2d(y), y in the channels-last format.
After: z = clone(max_pool2d(clone(y, default)), channels_last).

PyTorch's kernel for channels last has too few threads for a small image: on an H100 it takes about
20 microseconds; the kernel for the default format and the two copies together take 7 to 15.
"""

import operator
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call, fake_result
from nimble_fx.rewrites.results_read import is_only_first_read
from nimble_fx.torch_internals.memory_formats import is_channels_last
from nimble_fx.torch_internals.symbolic import are_known

_aten = torch.ops.aten
_POOL = _aten.max_pool2d_with_indices.default

MIN_WINDOW = 9
"""The fewest elements of a window. With four, the kernel takes no longer than the copies."""

MAX_ELEMENTS = 2**20
"""The most elements of the batch. Copies of a larger one take longer than they save."""


def default_format_pools(gm: GraphModule) -> GraphModule:
    """Copies images to the default format before their pooling, and the results back.

    Requires: windows of at least `MIN_WINDOW` elements; a batch of images of known sizes with at
    most `MAX_ELEMENTS` elements, which is in the channels-last format and not also in the default
    format; the indices of the maxima are not read.
    Ensures: the same values, of the same shapes and strides.

    Args:
        gm: an ATen graph for a GPU, with fake tensors in `meta["val"]`; it is changed and returned.
    """
    for pool in gm.graph.find_nodes(op="call_function", target=_POOL):
        if _gains(pool):
            _replace(gm, pool)
    gm.recompile()
    return gm


def _gains(pool: Node) -> bool:
    arguments: tuple[Any, ...] = pool.args
    image, window, *_ = arguments
    value: Tensor = image.meta["val"]
    is_known = are_known(value.shape)
    is_small = is_known and value.numel() <= MAX_ELEMENTS and prod(window) >= MIN_WINDOW
    return is_small and is_channels_last(value) and is_only_first_read(pool)


def _replace(gm: GraphModule, pool: Node) -> None:
    image, clone = pool.all_input_nodes[0], _aten.clone.default
    with gm.graph.inserting_before(pool):
        default = torch.contiguous_format
        copied = call(gm.graph, pool, clone, image, memory_format=default)
    pool.replace_input_with(image, copied)
    pool.meta = pool.meta | {"val": fake_result(pool)}
    for item in list(pool.users):
        item.meta = item.meta | {"val": fake_result(item)}
        with gm.graph.inserting_after(item):
            last = torch.channels_last
            back = call(gm.graph, item, clone, item, memory_format=last)
        item.replace_all_uses_with(back, delete_user_cb=partial(operator.is_not, back))
