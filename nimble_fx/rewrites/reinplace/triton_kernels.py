"""Calls Triton kernels that the model launches itself as operators.

AOTAutograd makes such a launch functional: it wraps it in a higher-order operator, which no task
can call, and which copies each tensor before the kernel writes to it.

Before: results = triton_kernel_wrapper_functional(grid=[(4, 1, 1)], kwargs={"x": x, "out": y}, ...)
        new = results["out"]
After:  new = clone(y); nimble_kernels.doubling_3fb08c41(x, new)

`reinplace_updates` then removes the copies that make no difference.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import SymFloat, SymInt, Tensor
from torch.fx import Graph, Node

from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS, registered
from nimble_fx.rewrites.reinplace.written_copies import can_be_copied, copy_before
from nimble_fx.torch_internals.leaves import nodes_in
from nimble_fx.torch_internals.names import OpOverload, pytree
from nimble_fx.torch_internals.obstacles import OBSTACLE
from nimble_fx.torch_internals.triton_calls import (
    TRITON_WRAPPER,
    WrappedLaunch,
    identity_of,
    launcher,
    wrapped_launch,
)

_PASSED = {Tensor: "Tensor", SymInt: "SymInt", int: "SymInt", SymFloat: "float", float: "float"}
"""The arguments that are nodes, by the types of their values, with those of an operator."""


def call_triton_kernels(graph: Graph) -> dict[Node, Node]:
    """Replaces wrapped launches by calls of the kernels' operators on copies.

    Requires: at most `MAX_PARAMETERS` arguments that are tensors or numbers, others are literals;
    known sizes of tensors with gaps, and in descriptors.
    Ensures: the same bits and strides, and the fake tensors that the launches' results had.

    Args:
        graph: an ATen graph with fake tensors in `meta["val"]`; it is changed.

    Returns:
        The copies, each with the node that reads its original.

    Cost: O(nodes + edges), and a clone on fake tensors for each tensor that is written.
    """
    copies: dict[Node, Node] = {}
    for node in graph.find_nodes(op="call_function", target=TRITON_WRAPPER):
        launch = wrapped_launch(node)
        originals: dict[str, Node] = {name: launch.arguments[name] for name in launch.written}
        obstacle = _obstacle(launch, originals)
        if obstacle is not None:
            node.meta[OBSTACLE] = f"kernel {launch.name} {obstacle}"
            continue
        with graph.inserting_before(node):
            own = {name: copy_before(node, each) for name, each in originals.items()}
            _unwrap(node, launch, {name: copy for name, (copy, _) in own.items()})
        copies.update(own.values())
    return copies


def _obstacle(launch: WrappedLaunch, originals: Mapping[str, Node]) -> str | None:
    """What keeps a launch from being an operator on copies."""
    nodes = nodes_in((launch.grid, launch.arguments))
    for name, node in originals.items():
        if not can_be_copied(node.meta["val"]):
            return f"writes to {name}, a tensor of symbolic sizes with gaps"
    if nodes_in(launch.descriptors):
        return "has a descriptor with symbolic sizes"
    if len(nodes) > MAX_PARAMETERS:
        return f"takes {len(nodes)} tensors and numbers, more than {MAX_PARAMETERS}"
    others = [node for node in nodes if not isinstance(node.meta["val"], tuple(_PASSED))]
    return f"takes a {type(others[0].meta['val']).__name__}" if others else None


def _unwrap(node: Node, launch: WrappedLaunch, copies: dict[str, Node]) -> None:
    """Replaces the node by a call of the kernel's operator, and its results by the copies."""
    arguments = {**launch.arguments, **copies}
    leaves, structure = pytree.tree_flatten((launch.grid, arguments))
    operands = [leaf for leaf in leaves if isinstance(leaf, Node)]
    written = [operand in copies.values() for operand in operands]
    operator = _operator(launch, leaves, structure, written)
    call = node.graph.create_node("call_function", operator, tuple(operands), {}, launch.name)
    call.meta = node.meta | {"val": None}
    for name, copy in copies.items():
        copy.meta["val"] = node.meta["val"][name]
    for item in list(node.users):
        item.replace_all_uses_with(copies[str(item.args[1])])
        node.graph.erase_node(item)
    node.graph.erase_node(node)


def _operator(
    launch: WrappedLaunch, leaves: list[Any], structure: Any, written: list[bool]
) -> OpOverload:
    """The operator that launches the kernel with the nodes among its arguments.

    Args:
        launch: the launch.
        leaves: the numbers of programs and the arguments, flat: nodes and literals.
        structure: puts them together.
        written: for each node, whether the kernel writes to it.
    """
    nodes = [leaf for leaf in leaves if isinstance(leaf, Node)]
    parameters = ", ".join(
        _parameter(i, node, is_written)
        for i, (node, is_written) in enumerate(zip(nodes, written, strict=True))
    )
    literals = [None if isinstance(leaf, Node) else identity_of(leaf) for leaf in leaves]
    constants = [(name, identity_of(value)) for name, value in launch.constants.items()]
    kernel, descriptors = identity_of(launch.kernel), repr(launch.descriptors)
    identity = (kernel, parameters, str(structure), literals, constants, descriptors)
    return registered(
        launch.name,
        identity,
        f"({parameters}) -> ()",
        _launch_with(launcher(launch), leaves, structure),
        lambda *operands: None,
        launch.source,
    )


def _launch_with(
    run: Callable[..., None], leaves: list[Any], structure: Any
) -> Callable[..., None]:
    literals = [None if isinstance(leaf, Node) else leaf for leaf in leaves]
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]

    def launch(*operands: Any) -> None:
        given = [*literals]
        for i, operand in zip(places, operands, strict=True):
            given[i] = operand
        run(*pytree.tree_unflatten(given, structure))

    return launch


def _parameter(i: int, node: Node, is_written: bool) -> str:
    kind = next(name for kind, name in _PASSED.items() if isinstance(node.meta["val"], kind))
    return f"{kind}(a{i}!) p{i}" if is_written else f"{kind} p{i}"
