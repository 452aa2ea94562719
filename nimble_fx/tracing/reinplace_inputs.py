"""Writes into parts of inputs in place, such as into a model's cache.

AOTAutograd functionalizes `cache.index_copy_(...)` to an operator that copies the whole cache, and
a copy of the result back to the input.
"""

import torch
from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.names import pytree
from nimble_fx.torch_internals.storages import storage_key

_aten = torch.ops.aten
_IN_PLACE_FORMS = {
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_copy.default: _aten.index_copy_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}
"""Operators that change a part of their first argument, with their in-place forms."""


def reinplace_inputs(gm: GraphModule) -> GraphModule:
    """Replaces a partial update of an input and its copy back by the in-place form.

    Args:
        gm: a functionalized ATen graph, with copies to its inputs at the end; it is changed and
            returned.
    """
    (output,) = gm.graph.find_nodes(op="output")
    for copy in gm.graph.find_nodes(op="call_function", target=_aten.copy_.default):
        written, update = copy.args[:2]
        if _is_needless(copy, written, update) and not _is_returned(update, output):
            update.target = _IN_PLACE_FORMS[update.target]
            gm.graph.erase_node(copy)
    gm.recompile()
    return gm


def _is_needless(copy: Node, written: Node, update: Node) -> bool:
    """Whether the update could write the input in place: no other node reads the input."""
    if written.op != "placeholder" or copy.users or update.target not in _IN_PLACE_FORMS:
        return False
    arguments = pytree.arg_tree_leaves(*update.args, **update.kwargs)
    positions = [i for i, argument in enumerate(arguments) if argument is written]
    has_same_strides = written.meta["val"].stride() == update.meta["val"].stride()
    return positions == [0] and written.users.keys() == {update, copy} and has_same_strides


def _is_returned(update: Node, output: Node) -> bool:
    """Whether the caller receives its result, which must then not alias the input."""
    values = [node.meta.get("val") for node in output.all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    held = {storage_key(tensor) for tensor in tensors}
    return storage_key(update.meta["val"]) in held
