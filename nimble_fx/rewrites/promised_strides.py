"""Copies results of kernels that return other strides than PyTorch's shape functions promise.

AOTAutograd traces with the promised strides: it leaves a `contiguous()` out, or computes a view
that needs them. With the others, that view is an error or has wrong values.

Before: y = roll(x), where x is in the channels-last format, and so is what the kernel returns
After: y = clone(roll(x), memory_format=contiguous_format), as the shape function promises
"""

import operator
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.ir.operator_aliasing import is_view
from nimble_fx.rewrites.layout import Layout
from nimble_fx.rewrites.new_nodes import call
from nimble_fx.rewrites.restrided import restride
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.memory_formats import contiguous_order, inverse_order
from nimble_fx.torch_internals.names import OpOverload, pytree
from nimble_fx.torch_internals.operators import reads_opaque_memory, schema_of
from nimble_fx.torch_internals.symbolic import NUMBERS, hint
from nimble_fx.tracing.constant_folding import Place

_aten = torch.ops.aten

_Strides = tuple[int, ...]

_UNPREDICTABLE = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}
"""Tags of operators that read data on the host, or draw random numbers."""

_PRODUCTS = {
    *(_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addbmm, _aten.dot, _aten.mv),
    *(_aten.addmv, _aten.convolution, _aten.convolution_backward),
}
"""Operators that take long, and return what is promised whatever their arguments' strides are."""

_TAKE_PIVOTS = {_aten.linalg_ldl_solve, _aten.linalg_lu_solve, _aten.lu_unpack}
"""Operators that index memory by pivots, of which 0 is none: some versions crash."""


def keep_promised_strides(gm: GraphModule, place: Place) -> GraphModule:
    """Copies results that have other strides than promised into memory with these.

    To see the strides, it runs operators now, on zeros; one that cannot run on zeros is left alone.

    Requires: an operator of ATen's that neither writes nor views nor draws random numbers, one of
    whose arguments is not contiguous, or has the strides of an image in the channels-last format,
    on a device that can run it now. (Of other arguments shape functions promise what kernels
    return.) Its result has no gaps.
    Ensures: the same values; each result has the strides that its fake tensor has, except where the
    size is 1 or there are no elements, and also there if other operators read it as an image and
    would take it for one in another memory format (see `restride` for single pixels).

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is changed and returned.
        place: as for `fold_constants`.

    Cost: the time of each such operator once, and memory for its arguments and results.
    """
    returned = dict[Hashable, Sequence[_Strides | None]]()
    for node in list(gm.graph.nodes):
        if not _may_differ(node, place):
            continue
        key = strides_key(node)
        if key not in returned:
            returned[key] = _returned_strides(node)
        for result, strides in zip(_results(node), returned[key], strict=False):
            if result is not None and strides is not None:
                _keep(gm.graph, result, strides)
        if isinstance(node.meta.get("val"), tuple):
            values = zip(_results(node), node.meta["val"], strict=True)
            node.meta["val"] = tuple(each.meta["val"] if each else val for each, val in values)
    gm.recompile()
    return gm


def _may_differ(node: Node, place: Place) -> bool:
    """Whether to compare what an operator returns with what is promised."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if is_view(target) or schema_of(target).is_mutable or target.overloadpacket in _PRODUCTS:
        return False
    if reads_opaque_memory(target) or target.overloadpacket in _TAKE_PIVOTS:
        return False
    inputs = tensors_in([each.meta.get("val") for each in node.all_input_nodes])
    is_plain = all(x.layout is torch.strided and type(x) is type(inputs[0]) for x in inputs)
    layouts = {Layout.of(x) for x in inputs} if is_plain else {None}
    if None in layouts or all(each is not None and each.is_by_default for each in layouts):
        return False
    is_contiguous = any(each is not None and each.is_contiguous for each in layouts)
    if torch.Tag.pointwise in target.tags and len(layouts) == 1 and not is_contiguous:
        return False
    is_here = all(place(x.device) == x.device for x in inputs)
    return is_here and _UNPREDICTABLE.isdisjoint(target.tags)


def strides_key(node: Node) -> Hashable:
    """What the strides of an operator's results depend on."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return node.target, repr([_described(leaf) for leaf in leaves])


def _described(value: Any) -> Any:
    value = value.meta.get("val") if isinstance(value, Node) else value
    if isinstance(value, Tensor):
        return Layout.of(value), value.dtype, value.device
    return hint(value) if isinstance(value, NUMBERS) else value


def _returned_strides(node: Node) -> Sequence[_Strides | None]:
    """The strides of each result of an operator for zeros; none if it cannot run on these."""
    try:
        with plain_eager_mode():
            args, kwargs = pytree.tree_map(_real, (node.args, node.kwargs))
            results = cast(Any, node.target)(*args, **kwargs)
    except Exception:  # such as that a matrix of zeros has no inverse
        return ()
    values = results if isinstance(results, (tuple, list)) else [results]
    return [each.stride() if isinstance(each, Tensor) else None for each in values]


def _real(value: Any) -> Any:
    """Zeros like a fake tensor; for a symbolic number its value in this call, or 1 if not known.

    A number that depends on data decides about no known size, and so hardly about strides.
    """
    value = value.meta.get("val") if isinstance(value, Node) else value
    layout = Layout.of(value) if isinstance(value, Tensor) else None
    if layout is not None:
        return layout.on(value.device, value.dtype)
    if isinstance(value, NUMBERS):
        known = hint(value)
        return 1 if known is None else known
    return value


def _results(node: Node) -> Iterator[Node | None]:
    """The nodes of an operator's results; None for a result that no node reads."""
    value = node.meta.get("val")
    if not isinstance(value, (tuple, list)):
        yield node if isinstance(value, Tensor) else None
        return
    users = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    yield from (users.get(k) for k in range(len(value)))


def _keep(graph: Graph, node: Node, strides: _Strides) -> None:
    """Copies a result into memory with the promised strides, if it has others.

    Later views share memory with the copy, which therefore gets the fake tensor.
    """
    promised: Tensor = node.meta["val"]
    layout = Layout.of(promised)
    if layout is None:
        return
    if layout.is_like(layout.with_strides(strides)):
        if layout.format != layout.with_strides(strides).format:
            restride(graph, node, layout, strides)
        return
    order, other = contiguous_order(promised), layout.with_strides(strides).order
    if order is None or other is None:
        return
    dense = promised.new_empty([promised.shape[i] for i in other])
    node.meta["val"] = dense.permute(inverse_order(other))
    before = set(node.users)
    with graph.inserting_before(node.next):
        copy = _copy(graph, node, order, promised)
    node.replace_all_uses_with(copy, lambda user: user in before)


def _copy(graph: Graph, node: Node, order: Sequence[int], value: Tensor) -> Node:
    """A copy that is contiguous in an order of dimensions, at the graph's insertion point.

    Args:
        graph: is changed.
        node: is copied.
        order: the order of dimensions.
        value: the fake tensor of the copy.
    """
    clone, contiguous = _aten.clone.default, torch.contiguous_format
    if order == sorted(order):
        copy = call(graph, node, clone, node, memory_format=contiguous)
    else:
        permuted = call(graph, node, _aten.permute.default, node, order)
        dense = call(graph, node, clone, permuted, memory_format=contiguous)
        dense.meta["val"] = value.permute(list(order))
        copy = call(graph, node, _aten.permute.default, dense, inverse_order(order))
    copy.meta["val"] = value
    return copy
