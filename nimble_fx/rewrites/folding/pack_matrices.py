"""Stores the constant factor of a matrix product in the layout that a CPU reads fastest.

Before: y = addmm(bias, x, matrix), or y = mm(x, matrix), where `matrix` depends only on weights.
After, if x has several rows: y = `mkldnn::_linear_pointwise`, whose weight oneDNN packs.
After, if x has one row and the matrix has many more columns than rows, as after a small hidden
layer: the same product with a row-major copy of the matrix. `nn.Linear` stores it column-major, so
that each result is a short inner product.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import torch
from torch.fx import GraphModule, Node

from nimble_fx.rewrites.new_nodes import call, without_gaps
from nimble_fx.torch_internals.kernels.onednn import LINEAR, is_available
from nimble_fx.torch_internals.symbolic import are_known

_aten = torch.ops.aten

MIN_ELEMENTS = 2**17
"""The fewest elements of a matrix. With fewer, packing gains less than calling oneDNN costs."""

MANY_COLUMNS = 4
"""How many times as many columns as rows a matrix must have to be copied row-major."""

MAX_NBYTES = 2**30
"""The most memory that the copies of a program take, in addition to the model's own."""


def pack_matrices(gm: GraphModule, fixed: Collection[Node]) -> GraphModule:
    """Lets products with constant matrices read copies of these in the fastest layout.

    Requires: a product of float32 tensors of known sizes on a CPU; the matrix is among `fixed` and
    has at least `MIN_ELEMENTS`, and the product is not among `fixed`; a bias has one number for
    each column.
    Ensures: the same values up to rounding, of the same shapes and strides. Products with the same
    matrix share its copy. The copies take at most `MAX_NBYTES`, for the first products in program
    order.

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
    """A product with a matrix that gains from another layout."""

    node: Node
    bias: Node | None
    x: Node
    matrix: Node

    @staticmethod
    def of(node: Node) -> "_Product | None":
        """The product that an operator computes; None for an operator to leave alone."""
        if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
            return None
        *added, x, matrix = cast(tuple[Node, ...], node.args)
        product = _Product(node, next(iter(added), None), x, matrix)
        gains = product.is_known and product.is_large
        return product if gains and (product.is_packed or product.is_wide_row) else None

    @property
    def is_known(self) -> bool:
        """Whether sizes are known, tensors are dense and of float32, and a bias is one row."""
        value, x, matrix = (each.meta["val"] for each in (self.node, self.x, self.matrix))
        tensors = [value, x, matrix]
        if self.bias is not None:
            tensors.append(self.bias.meta["val"])
            if tensors[-1].shape != value.shape[1:]:
                return False
        sizes = [n for each in tensors for n in each.shape]
        kinds = {(each.dtype, each.layout) for each in tensors}
        return are_known(sizes) and kinds == {(torch.float32, torch.strided)}

    @property
    def is_large(self) -> bool:
        """Whether the matrix has enough elements to gain from another layout."""
        return bool(self.matrix.meta["val"].numel() >= MIN_ELEMENTS)

    @property
    def is_packed(self) -> bool:
        """Whether to replace it with oneDNN's operator, with a packed weight."""
        return bool(self.node.meta["val"].shape[0] > 1) and is_available()

    @property
    def is_wide_row(self) -> bool:
        """Whether it has one row, and a matrix with many more columns than rows, not row-major."""
        matrix = self.matrix.meta["val"]
        n_rows, n_columns = matrix.shape
        is_row = self.node.meta["val"].shape[0] == 1
        is_wide = n_columns >= MANY_COLUMNS * n_rows
        return bool(is_row and is_wide and not matrix.is_contiguous())

    def replace(self, gm: GraphModule, copies: dict[tuple[Node, bool], Node]) -> None:
        """Replaces it with the product with a copy of the matrix.

        Args:
            gm: its graph.
            copies: the copies made so far, by the matrix and whether the copy is transposed.
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
        """The node to copy, and whether transposed; products with equal ones share the copy."""
        if self.matrix.target is _aten.t.default:
            return self.matrix.all_input_nodes[0], not self.is_packed
        return self.matrix, self.is_packed

    def _copy(self, gm: GraphModule, source: Node, transposed: bool) -> Node:
        """A row-major copy of a matrix, or of its transpose."""
        if transposed:
            source = call(gm.graph, self.node, _aten.t.default, source)
        contiguous = torch.contiguous_format
        return call(gm.graph, self.node, _aten.clone.default, source, memory_format=contiguous)


def _nbytes(*matrices: Node) -> int:
    return sum(node.meta["val"].nbytes for node in matrices)
