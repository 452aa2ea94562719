"""Stores the constant factor of a matrix product in the layout that a CPU reads fastest.

Before: y = addmm(bias, x, matrix), or y = mm(x, matrix), where `matrix` depends on weights alone.
After, if x has several rows: y = `mkldnn::_linear_pointwise`, whose weight oneDNN packs.
After, if x has one row and the matrix many more columns than rows, as after a small hidden layer:
the same product by a copy of the matrix, row by row in memory. `nn.Linear` stores it column by
column, so that each result is a short inner product.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import torch
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call, without_gaps
from nimble_fx.torch_internals.kernels.onednn import LINEAR, is_available

_aten = torch.ops.aten

MIN_ELEMENTS = 2**17
"""Of a matrix. By a smaller one a product gains less than a call of oneDNN costs."""

MANY_COLUMNS = 4
"""How many times as many as rows."""

MAX_NBYTES = 2**30
"""The most memory that the copies of a program take, beside the model's own."""


def pack_matrices(gm: GraphModule, fixed: Collection[Node]) -> GraphModule:
    """Lets products by constant matrices read copies of these in the layout that is fastest.

    Requires: the product is of float32 tensors on a CPU, and of sizes that are known; the matrix is
    among `fixed`, the product itself is not, and it has at least `MIN_ELEMENTS`; a bias has one
    number for each column.
    Ensures: the same values up to rounding, of the same shapes and strides. Products by the same
    matrix share its copy. The copies take at most `MAX_NBYTES`; the first products have them.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        fixed: nodes that are computed outside of the calls.
    """
    copies = dict[tuple[Node, bool], Node]()
    for node in list(gm.graph.nodes):
        product = _Product.of(node)
        if product is None or product.matrix not in fixed or node in fixed:
            continue
        if product.copied in copies or _nbytes(product.matrix, *copies.values()) <= MAX_NBYTES:
            product.replace(gm, copies)
    gm.recompile()
    return gm


@dataclass(frozen=True)
class _Product:
    """A product by a matrix that gains by another layout."""

    node: Node
    bias: Node | None
    x: Node
    matrix: Node

    @staticmethod
    def of(node: Node) -> "_Product | None":
        """The product that an operator computes; None for one that is left as it is."""
        if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
            return None
        *added, x, matrix = cast(tuple[Node, ...], node.args)
        product = _Product(node, next(iter(added), None), x, matrix)
        gains = product.is_known and product.is_large
        return product if gains and (product.is_packed or product.is_wide_row) else None

    @property
    def is_known(self) -> bool:
        """Whether sizes are numbers, all is of float32 and dense, and a bias is one row."""
        value, x, matrix = (each.meta["val"] for each in (self.node, self.x, self.matrix))
        tensors = [value, x, matrix]
        if self.bias is not None:
            tensors.append(self.bias.meta["val"])
            if tensors[-1].shape != value.shape[1:]:
                return False
        sizes = [n for each in tensors for n in each.shape]
        kinds = {(each.dtype, each.layout) for each in tensors}
        return all(type(n) is int for n in sizes) and kinds == {(torch.float32, torch.strided)}

    @property
    def is_large(self) -> bool:
        """Whether the matrix has enough elements for another layout to gain anything."""
        return bool(self.matrix.meta["val"].numel() >= MIN_ELEMENTS)

    @property
    def is_packed(self) -> bool:
        """Whether it becomes oneDNN's operator, with a packed weight."""
        return bool(self.node.meta["val"].shape[0] > 1) and is_available()

    @property
    def is_wide_row(self) -> bool:
        """Whether it is of one row, and by a matrix of many more columns than rows."""
        n_rows, n_columns = self.matrix.meta["val"].shape
        is_row = self.node.meta["val"].shape[0] == 1
        return bool(is_row and n_columns >= MANY_COLUMNS * n_rows)

    def replace(self, gm: GraphModule, copies: dict[tuple[Node, bool], Node]) -> None:
        """Makes it the product by a copy of the matrix.

        Args:
            gm: its graph.
            copies: the copies before it, by their matrix and whether they are its transposed.
        """
        key = self.copied
        with gm.graph.inserting_before(self.node):
            if key not in copies:
                copies[key] = self._copy(gm, *key)
            if not self.is_packed:
                self.node.replace_input_with(self.matrix, copies[key])
                return
            bias = self.bias and without_gaps(gm.graph, self.bias, self.node)
        self.node.target = LINEAR
        self.node.args = (self.x, copies[key], bias, "none", [], None)

    @property
    def copied(self) -> tuple[Node, bool]:
        """What is copied, and whether its transposed is: two products may share the copy."""
        if self.matrix.target is _aten.t.default:
            return self.matrix.all_input_nodes[0], not self.is_packed
        return self.matrix, self.is_packed

    def _copy(self, gm: GraphModule, source: Node, transposed: bool) -> Node:
        """A matrix, or its transposed, row by row in memory."""
        if transposed:
            source = call(gm.graph, self.node, _aten.t.default, source)
        contiguous = torch.contiguous_format
        return call(gm.graph, self.node, _aten.clone.default, source, memory_format=contiguous)


def _nbytes(*matrices: Node) -> int:
    return sum(node.meta["val"].nbytes for node in matrices)
