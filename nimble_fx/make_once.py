"""Tensors that an inference graph makes alike, out of nothing, are made once.

Each `nn.EmbeddingBag` makes itself an `arange` of its bags: in DLRM 26 of 67 launches are the same
one. In training PyTorch's partitioner merges all that is computed twice. It would also merge
two draws of random numbers into equal tensors, and takes a second to import, so it is not asked.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

MAX_BYTES = 2**20
"""Larger ones would cost more memory, from the first use to the last, than they save time."""


def make_once(gm: GraphModule) -> GraphModule:
    """The graph itself, changed: of equal constructors, such as `arange`, the first is kept.

    Args:
        gm: an ATen graph. What it returns or writes keeps memory of its own, and so does what it
            has views of, whose fake tensors say in whose memory they lie, and what an operator of
            somebody else's takes, who may return it.
    """
    held = Counter(storage for node in gm.graph.nodes for storage in _storages([node]))
    touched = _storages(_returned_or_written(gm)).union(s for s, n in held.items() if n > 1)
    kept: dict[Hashable, Node] = {}
    for node in list(gm.graph.nodes):
        if not _makes_a_constant(node) or _storages([node]) & touched or not _is_atens(node.users):
            continue
        first = kept.setdefault(_key(node), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _makes_a_constant(node: Node) -> bool:
    """Whether it makes one small tensor, the same each time, out of nothing but literals."""
    target, tensors = node.target, _tensors([node])
    if not isinstance(target, OpOverload) or target.namespace != "aten" or node.all_input_nodes:
        return False
    if len(tensors) != 1 or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    n_bytes = tensors[0].untyped_storage().nbytes()
    return type(n_bytes) is int and n_bytes <= MAX_BYTES


def _is_atens(nodes: Iterable[Node]) -> bool:
    return all(getattr(node.target, "namespace", None) == "aten" for node in nodes)


def _key(node: Node) -> Hashable:
    """What is the same for nodes that make the same; 1, 1.0 and True are not the same."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    return node.target, str(structure), tuple((type(leaf), repr(leaf)) for leaf in leaves)


def _returned_or_written(gm: GraphModule) -> Iterator[Node]:
    for node in gm.graph.nodes:
        target = node.target
        if node.op == "output" or (isinstance(target, OpOverload) and target._schema.is_mutable):
            yield from node.all_input_nodes


def _storages(nodes: Iterable[Node]) -> set[int]:
    """The storages of the nodes' fake tensors, which alias as the real ones will."""
    return {tensor.untyped_storage()._cdata for tensor in _tensors(nodes)}


def _tensors(nodes: Iterable[Node]) -> list[torch.Tensor]:
    """The nodes' fake tensors that have a storage."""
    values = pytree.tree_leaves([node.meta.get("val") for node in nodes])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.layout is torch.strided]
