"""Inputs of which a program writes a part, such as a model's cache, are written where they are.

Of `cache.index_copy_(...)` AOTAutograd makes an operator that copies the whole cache, and a copy of
the result back to the input.
"""

import torch
from torch.fx import GraphModule, Node

from nimble_fx.torch_internals.names import pytree
from nimble_fx.torch_internals.storages import storage_key

_aten = torch.ops.aten
_WRITES_A_PART = {
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_copy.default: _aten.index_copy_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}
"""Operators that leave most of their first argument as it was, with those that write it."""


def write_in_place(gm: GraphModule) -> GraphModule:
    """The graph itself, changed: a part of an input is written without a copy of the whole.

    Args:
        gm: a functional ATen graph whose inputs are written by copies at the end.
    """
    (output,) = gm.graph.find_nodes(op="output")
    for copy in gm.graph.find_nodes(op="call_function", target=_aten.copy_.default):
        given, update = copy.args[:2]
        if _is_needless(copy, given, update) and not _is_returned(update, output):
            update.target = _WRITES_A_PART[update.target]
            gm.graph.erase_node(copy)
    gm.recompile()
    return gm


def _is_needless(copy: Node, given: Node, update: Node) -> bool:
    """Whether a copy brings back what could be written at once: nobody else reads the input."""
    if given.op != "placeholder" or copy.users or update.target not in _WRITES_A_PART:
        return False
    arguments = pytree.arg_tree_leaves(*update.args, **update.kwargs)
    places = [i for i, argument in enumerate(arguments) if argument is given]
    is_laid_out_alike = given.meta["val"].stride() == update.meta["val"].stride()
    return places == [0] and given.users.keys() == {update, copy} and is_laid_out_alike


def _is_returned(update: Node, output: Node) -> bool:
    """Whether the caller is given its result, which must not be the input's memory then."""
    values = [node.meta.get("val") for node in output.all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    held = {storage_key(tensor) for tensor in tensors}
    return storage_key(update.meta["val"]) in held
