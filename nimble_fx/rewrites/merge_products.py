"""Merges products with the same matrix, which is then read once for the rows of all.

Before: y1 = addmm(bias, x1, matrix); y2 = addmm(bias, x2, matrix), as in the steps of a recurrent
network: a layer multiplies the outputs of all steps of the layer below by one matrix.
After: y = addmm(bias, cat([x1, x2]), matrix); y1, y2 = split_with_sizes(y, [rows of x1, of x2]).
"""

import operator
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node

from nimble_fx.rewrites.folding.hoist_weights import fixed_nodes
from nimble_fx.rewrites.live_memory import MAX_GROWTH, LiveMemory
from nimble_fx.rewrites.new_nodes import call, fake_result
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.symbolic import are_known
from nimble_fx.tracing.constant_folding import follows_from_arguments
from nimble_fx.tracing.escape_analysis import escaping_or_written, storages
from nimble_fx.tracing.source_lines import fuse_lines

_aten = torch.ops.aten

_DEPEND_ON_OFFSET = {
    _aten.as_strided.default,
    _aten.as_strided_copy.default,
    _aten.as_strided_scatter.default,
    _aten.view.dtype,
    _aten.view_as_complex.default,
    _aten.view_as_complex_copy.default,
    _aten.view_copy.dtype,
}
"""Views whose values, or whether they exist, depend on where in its storage a tensor begins."""

MIN_ELEMENTS = 2**14
"""The fewest elements of the matrix. Reading a smaller one takes no longer than the cat."""

MAX_ROWS = 16
"""The most rows of a product. With more, reading the matrix is a small part of the time."""

MAX_GROWTH_NBYTES = 2**20
"""By how many bytes the peak memory may grow in any case, even if `MAX_GROWTH` allows less."""


def merge_products(gm: GraphModule, static: Collection[str]) -> GraphModule:
    """The graph with products with the same matrix merged; the graph itself if there are none.

    Requires: products of few rows with one large matrix, of known sizes, none of which is computed
    from another's result, or only from weights. Their results are neither returned nor written, and
    operators between them have no side effects, because some move behind the merged product. No
    view in the graph depends on where in its storage a tensor begins.
    Ensures: the same values up to rounding, of the same shapes and strides, and in program order
    hardly more peak memory (`LiveMemory`), or at most `MAX_GROWTH_NBYTES` more; a graph that would
    need more is returned unchanged.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        static: the names of the inputs that are parameters and buffers.

    Cost: O(nodes + edges) for each matrix with several products, and for each merged product.
    """
    groups = _by_matrix(gm, static)
    if not groups or not all(map(_may_move, gm.graph.nodes)):
        return gm
    merged = copied(gm)
    graph, stale = merged.graph, set[int]()
    copies = dict(zip(gm.graph.nodes, graph.nodes, strict=True))
    for products in groups:
        for independent in _by_depth(graph, {copies[product] for product in products}):
            if len(independent) > 1:
                stale.update(key for product in independent for key in storages(product))
                _merge(graph, independent)
    for node in graph.nodes:
        if not stale.isdisjoint(storages(node)):  # a view of a result that has moved
            node.meta["val"] = fake_result(node)
    merged.recompile()
    least = LiveMemory(gm.graph).least_peak
    most = max((1 + MAX_GROWTH) * least, least + MAX_GROWTH_NBYTES)
    return merged if stale and LiveMemory(graph).peak <= most else gm


def _may_move(node: Node) -> bool:
    """Whether a node computes the same anywhere after its arguments, and anywhere in memory."""
    if node.op != "call_function":
        return True
    return follows_from_arguments(node) and node.target not in _DEPEND_ON_OFFSET


def _by_matrix(gm: GraphModule, static: Collection[str]) -> list[Collection[Node]]:
    """The products that gain from merging, by their matrix and bias."""
    groups = defaultdict[Hashable, set[Node]](set)
    for node in gm.graph.nodes:
        if node.target in (_aten.mm.default, _aten.addmm.default):
            *added, x, matrix = cast(tuple[Node, ...], node.args)
            if _gains(x, matrix) and all(_is_one_row(bias, node) for bias in added):
                groups[*added, matrix, *sorted(node.kwargs.items())].add(node)
    several = [products for products in groups.values() if len(products) > 1]
    if not several:
        return []
    fixed = fixed_nodes(gm, static)
    left_alone = escaping_or_written(gm.graph).union(fixed)
    return [products - left_alone for products in several]


def _gains(x: Node, matrix: Node) -> bool:
    """Whether the sizes are known, the rows are few, and the matrix is large."""
    rows, columns = x.meta["val"], matrix.meta["val"]
    if rows.layout is not torch.strided or columns.layout is not torch.strided:
        return False
    if not are_known((*rows.shape, *columns.shape)):
        return False
    return len(rows) <= MAX_ROWS and columns.numel() >= MIN_ELEMENTS


def _is_one_row(bias: Node, product: Node) -> bool:
    """Whether it adds the same numbers to each row."""
    added, value = bias.meta["val"], product.meta["val"]
    return bool(added.shape == value.shape[1:])


def _by_depth(graph: Graph, products: Collection[Node]) -> Iterable[Collection[Node]]:
    """Classes of products without paths between them: by the most products on a path to each.

    All classes can be merged: no path that leaves one comes back to it, as depths grow along it.
    """
    depths, classes = dict[Node, int](), defaultdict[int, set[Node]](set)
    for node in graph.nodes:
        depths[node] = max((depths[argument] for argument in node.all_input_nodes), default=0)
        if node in products:
            classes[depths[node]].add(node)
            depths[node] += 1
    return classes.values()


def _merge(graph: Graph, products: Collection[Node]) -> None:
    """Merges products at the place of the last; readers of the other results move behind it."""
    in_order = [node for node in graph.nodes if node in products]
    readers, place = _readers(in_order), in_order[-1]
    with graph.inserting_before(place):
        parts = _parts(graph, in_order)
    for node in readers:
        place.append(node)
        place = node
    for product, part in zip(in_order, parts, strict=True):
        product.replace_all_uses_with(part)
        graph.erase_node(product)


def _readers(products: Sequence[Node]) -> list[Node]:
    """The nodes between the first and the last of the products that are computed from them."""
    found, node = dict.fromkeys(products), products[0]
    while node is not products[-1]:
        node = node.next
        if not found.keys().isdisjoint(node.all_input_nodes):
            found[node] = None
    return list(found)[len(products) :]


def _parts(graph: Graph, products: Sequence[Node]) -> list[Node]:
    """Adds the merged product; returns a node for the rows of each product."""
    first = products[0]
    *added, _, matrix = first.args
    xs = [cast(Node, product.args[-2]) for product in products]
    rows = call(graph, first, _aten.cat.default, xs)
    merged = call(graph, first, cast(Any, first.target), *added, rows, matrix, **first.kwargs)
    fuse_lines(merged, products)
    sizes = [len(x.meta["val"]) for x in xs]
    split = call(graph, first, _aten.split_with_sizes.default, merged, sizes)
    item = cast(Any, operator.getitem)
    return [call(graph, product, item, split, i) for i, product in enumerate(products)]
