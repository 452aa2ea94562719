"""Writes updates of a part of a tensor in place, as the user's code does.

AOTAutograd makes graphs functional: an assignment to a slice becomes an operator that copies the
whole tensor, and if the tensor is an input, such as a cache, it is also copied back at the end.

Before: a = slice(y, 1, 0, 2); b = add(a, x); c = slice_scatter(y, b, 1, 0, 2)
After:  a = slice(y, 1, 0, 2); add_(a, x); the readers of c read y

Before: b = index_put(y, [i], x); c = mul(b, 2); copy_(y, c), of an input y
After:  index_put_(y, [i], x); mul_(y, 2)

Custom operators that write to their arguments, and Triton kernels, are wrapped to be functional:

Before: pair = auto_functionalized_v2(push, row=x, _rows_base_index=0, _all_bases=[rows])
        copy_(rows, pair[1]), of an input rows
After:  push(rows, x)

Inductor does the same for its own kernels (`torch._inductor.fx_passes.reinplace`).
"""

import operator
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_autograd_view, is_view
from nimble_fx.rewrites.new_nodes import call, fake_call, fake_result
from nimble_fx.rewrites.reinplace.memory_accesses import memories_of
from nimble_fx.rewrites.reinplace.parts_of_memory import (
    are_disjoint,
    have_same_layout,
    is_same_part,
    is_whole,
)
from nimble_fx.rewrites.reinplace.wrapped_calls import WRAPPERS, unwrap
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.in_place_forms import elementwise_in_place_form, in_place_form
from nimble_fx.torch_internals.leaves import nodes_in
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import RESHAPES
from nimble_fx.torch_internals.symbolic import NUMBERS, has_unbacked_size
from nimble_fx.tracing.escape_analysis import storages

_aten = torch.ops.aten
_UPDATES = {
    _aten.index_add.default,
    _aten.index_copy.default,
    _aten.index_fill.int_Scalar,
    _aten.index_fill.int_Tensor,
    _aten.index_put.default,
    _aten.masked_scatter.default,
    _aten.scatter.src,
    _aten.scatter.value,
    _aten.scatter_add.default,
    _aten.scatter_reduce.two,
}
"""Operators that return their first argument with some elements changed."""

_VIEWS = {
    _aten.diagonal_scatter.default: _aten.diagonal.default,
    _aten.select_scatter.default: _aten.select.int,
    _aten.slice_scatter.default: _aten.slice.Tensor,
}
"""Operators that return their first argument with a view of it replaced, and that view."""

_OVERWRITE = {_aten.copy.default, _aten.fill.Scalar, _aten.fill.Tensor, _aten.zero.default}
"""Operators that use only the shape, strides and type of their first argument."""

_CHANGE_FIRST = _UPDATES | _OVERWRITE

PARTIAL_UPDATES = _UPDATES | _VIEWS.keys()
"""Operators that return their first argument with a part of it changed."""


def reinplace_updates(gm: GraphModule) -> GraphModule:
    """The graph with updates of tensors in place; the graph itself if it updates none.

    Requires: an update of a whole tensor that the graph allocates; or any elementwise operator on
    an input to which the graph copies the result back. No node reads the tensor or a view of it
    after the update, nor after the values to write are computed. Neither is returned to the caller
    or passed to a custom operator that does not write to it; the update may be returned, unless the
    tensor is a view (`is_autograd_view`).
    Ensures: the same bits and strides; outputs alias inputs and each other as before. Custom
    operators, and Triton kernels of the model, write to copies if they may not write in place.

    Args:
        gm: a functional ATen graph with fake tensors in `meta["val"]`; it is not changed.

    Cost: O(nodes + edges); for each update the readers of its memory, and an operator on fake
    tensors.
    """
    updates = _CHANGE_FIRST | _VIEWS.keys() | {_aten.copy_.default, *WRAPPERS}
    if not any(node.target in updates for node in gm.graph.nodes):
        return gm
    gm = copied(gm)
    _Reinplacing(gm.graph, unwrap(gm.graph)).run()
    gm.recompile()
    return gm


class _Reinplacing:
    """Rewrites a graph, in program order."""

    def __init__(self, graph: Graph, copies: Mapping[Node, Node]) -> None:
        self._graph = graph
        self._copies = copies
        self._memories = memories_of(graph)
        self._copies_back = _updates_copied_back(graph, copies)
        self._gone: set[int] = set()  # storages of results that are no longer allocated

    def run(self) -> None:
        """Visits all nodes; views of values whose memory has changed get new fake tensors."""
        for node in list(self._graph.nodes):
            if not self._gone.isdisjoint(storages(node)):
                node.meta["val"] = fake_result(node)
            if node.target is _aten.copy_.default and self._copies_itself(node):
                node.replace_all_uses_with(node.args[0])
                self._graph.erase_node(node)
            elif not node.users:
                continue
            elif node in self._copies:
                self._remove_copy(node)
            elif node.target in _VIEWS:
                self._replace_view(node)
            elif node.target in _CHANGE_FIRST or node in self._copies_back:
                self._update(node)
        for node in reversed(self._graph.nodes):
            if not node.users and _is_pure(node):
                self._graph.erase_node(node)

    def _copies_itself(self, node: Node) -> bool:
        target, source = node.args[:2]
        return (
            isinstance(target, Node)
            and isinstance(source, Node)
            and self._is_part(source, target.meta["val"], target)
        )

    def _remove_copy(self, copy: Node) -> None:
        """Lets a call write to a tensor itself, instead of to a copy."""
        first = self._copies[copy]
        base: Any = first.args[0]
        except_by = {first, copy, *copy.all_input_nodes, self._copies_back.get(copy)}
        if self._can_take_memory(copy, base) and not self._is_read_from(first, base, except_by):
            self._merge(copy, base)

    def _update(self, node: Node) -> None:
        """Makes an operator update its first argument in place."""
        base, form = node.args[0], _form(node)
        if form is None or not isinstance(base, Node) or not self._can_take_memory(node, base):
            return
        if self._is_read_from(node, base, {node, self._copies_back.get(node)}):
            return
        part = base.meta["val"]
        if all(self._can_be_read_by(node, other, part, base) for other in _others(node)):
            node.target = form
            self._merge(node, base)

    def _replace_view(self, node: Node) -> None:
        """Writes to a view of a tensor, instead of copying the tensor, if that is safe."""
        base = node.args[0]
        if not isinstance(base, Node) or not self._can_take_memory(node, base):
            return
        chain = self._chain(node)
        inner, source = chain[-1], chain[-1].args[1]
        if not isinstance(source, Node):
            return
        except_by = {source, *chain, self._copies_back.get(node)}
        if self._is_read_from(inner, base, except_by):
            return
        part = _part(inner)
        if source in self._copies:
            source = self._original(source, part, base, except_by)
        form = self._form_that_writes(source, inner, part, base)
        if form is not None and self._is_read_from(source, base, except_by):
            form = None
        copies = form is not None and source.target is _aten.copy.default
        value = source.args[1] if copies else source
        if isinstance(value, Node) and self._is_part(value, part, base):
            pass  # a copy to itself, with which functionalization ends `y[0] += 1`
        elif form is not None:
            source.target = form
            source.meta["val"] = part
        elif not self._copy(source, inner, part, base):
            return
        self._merge(node, base)
        self._memories[base].replaced.update(dict.fromkeys(chain, part))
        for each in chain:
            self._graph.erase_node(each)

    def _original(self, copy: Node, part: Tensor, base: Node, except_by: set[Node | None]) -> Node:
        """The part of a tensor, if a call may write there; the copy, if it must write to that."""
        first = self._copies[copy]
        original: Any = first.args[0]
        except_by = {*except_by, first, *copy.all_input_nodes}
        may_be = self._is_part(original, part, base) and not self._memories[copy].escapes
        memory, whole = self._memories[base], base.meta["val"]
        if may_be and not memory.is_part_read_from(first, except_by, part, whole):
            self._merge(copy, original)
            return cast(Node, original)
        return copy

    def _copy(self, source: Node, inner: Node, part: Tensor, base: Node) -> bool:
        """Copies values to the replaced view of a tensor; False if the values may lie in it."""
        if not self._can_be_read_by(inner, source, part, base):
            return False
        with self._graph.inserting_before(inner):
            target, arguments = _VIEWS[inner.target], (inner.args[0], *inner.args[2:])  # type: ignore[index]
            view = call(self._graph, inner, target, *arguments, **inner.kwargs)
            call(self._graph, inner, _aten.copy_.default, view, source)
        return True

    def _chain(self, node: Node) -> list[Node]:
        """Nested replacements of views of views, outermost first, that amount to one view."""
        chain = [node]
        while True:
            source = chain[-1].args[1]
            if not isinstance(source, Node) or source.target not in _VIEWS:
                return chain
            viewed, part = source.args[0], _part(chain[-1])
            is_of_part = (
                isinstance(viewed, Node)
                and self._memories[viewed] is self._memories[node.args[0]]  # type: ignore[index]
                and is_same_part(viewed.meta["val"], part)
            )
            if not is_of_part or source.users.keys() != {chain[-1]}:
                return chain
            chain.append(source)

    def _form_that_writes(
        self, source: Node, inner: Node, part: Tensor, base: Node
    ) -> OpOverload | None:
        """The operator that computes values directly into the view; None if there is none."""
        form = _form(source)
        if form is None or source.users.keys() != {inner}:
            return None
        first, value = source.args[0], source.meta["val"]
        if not isinstance(first, Node) or not self._is_part(first, part, base):
            return None
        others = _others(source)
        can_read = all(self._can_be_read_by(source, other, part, base) for other in others)
        return form if value.dtype == part.dtype and can_read else None

    def _is_part(self, node: Node, part: Tensor, base: Node) -> bool:
        """Whether a node is the view of a tensor that an operator replaces."""
        same_memory = self._memories[node] is self._memories[base]
        return same_memory and is_same_part(node.meta["val"], part)

    def _can_be_read_by(self, node: Node, operand: Node, part: Tensor, base: Node) -> bool:
        """Whether an operator that updates `part` in place can also read `operand`."""
        if self._memories[operand] is not self._memories[base]:
            return True
        value = operand.meta["val"]
        if are_disjoint(value, part, base.meta["val"]):
            return True
        # One that is not elementwise may read an element that it has written.
        return node.target not in _UPDATES and is_same_part(value, part)

    def _can_take_memory(self, result: Node, base: Node) -> bool:
        """Whether a result can take the operand's memory, if no node reads the operand again."""
        memory = self._memories[base]
        if memory.is_allocated:
            may_be = is_whole(base.meta["val"])
        else:
            may_be = result in self._copies_back and not self._memories[result].escapes
        return (
            may_be
            and have_same_layout(base.meta["val"], result.meta["val"])
            and not has_unbacked_size(base.meta["val"])
            and not (_is_returned(result) and _is_view(base))
        )

    def _is_read_from(self, first: Node, base: Node, except_by: set[Node | None]) -> bool:
        """Whether a node other than the given ones reads a tensor at a node's position or later."""
        return self._memories[base].is_read_from(first, except_by)

    def _merge(self, result: Node, base: Node) -> None:
        """Makes the readers of a result read the operand, which is updated in place."""
        self._gone.update(storages(result).keys() - storages(base).keys())
        self._memories[base].add(self._memories[result], self._memories)
        result.meta["val"] = base.meta["val"]
        result.replace_all_uses_with(base)


def _is_pure(node: Node) -> bool:
    """Whether it makes a view, a copy or a size, which an update may leave without readers."""
    target, value = node.target, node.meta.get("val")
    if isinstance(value, NUMBERS):
        return node.op == "call_function" and not has_unbacked_size(value)
    is_copy = target in (_aten.copy.default, _aten.clone.default)
    return is_copy or (isinstance(target, OpOverload) and is_view(target))


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _is_view(node: Node) -> bool:
    """Whether autograd regards it as a view, or as one of several."""
    target: Any = node.all_input_nodes[0].target if node.target is operator.getitem else node.target
    return isinstance(target, OpOverload) and is_autograd_view(target)


def _others(node: Node) -> list[Node]:
    """The nodes among an operator's arguments, except the first argument."""
    return nodes_in((node.args[1:], node.kwargs))


def _form(node: Node) -> OpOverload | None:
    """The in-place form of an update, or of an elementwise operator; None if there is none."""
    target: Any = node.target
    return in_place_form(target) if target in _CHANGE_FIRST else elementwise_in_place_form(target)


def _part(node: Node) -> Tensor:
    """The fake tensor of the view that a node replaces."""
    base, _, *arguments = node.args
    part: Tensor = fake_call(_VIEWS[node.target], base, *arguments, **node.kwargs)  # type: ignore[index]
    return part


def _updates_copied_back(graph: Graph, copies: Mapping[Node, Node]) -> dict[Node, Node]:
    """The copies back to inputs, by the operator that computes the copied value from the input.

    Args:
        graph: an ATen graph.
        copies: copies to which calls write, with the nodes that read the originals.
    """
    found = {}
    for copy in graph.find_nodes(op="call_function", target=_aten.copy_.default):
        target, source = copy.args[0], _reshaped(copy.args[1])
        updates = []
        while isinstance(source, Node) and (
            source in copies or source.target in _VIEWS or _form(source) is not None
        ):
            updates.append(source)
            source = copies.get(source, source)
            source = _reshaped(source.args[0]) if source.args else None
        if source is target and source.op == "placeholder":
            found.update(dict.fromkeys(updates, copy))
    return found


def _reshaped(node: Any) -> Any:
    """What a node views in another shape; the node itself if it does not."""
    while isinstance(node, Node) and node.target in RESHAPES:
        node = node.args[0]
    return node
