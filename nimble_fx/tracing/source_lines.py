"""Lines of the user's code that the nodes of a graph come from, as Dynamo recorded them."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch.fx import Node

from nimble_fx.internal_files import is_installed
from nimble_fx.ir.display import printable
from nimble_fx.ir.task_graph import Source
from nimble_fx.tracing.dynamo_paths import called_module

_FUSED = "fused_sources"
"""The key in `Node.meta` of the lines of all operators that a node's kernel fuses, in order."""

_FRAME = re.compile(
    r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)\n\s*(?P<code>.*)'
)
_CALLS_MODULES = {"torch.nn.modules.container", "torch.nn.modules.transformer"}
"""The Python modules of PyTorch's classes whose forwards consist of calls of other modules."""


def source_of(node: Node) -> Source | None:
    """The user's innermost line that the node comes from, if fx recorded one."""
    own = _recorded(node)
    if _is_aotautograds(node):
        of_operand = _recorded(node.all_input_nodes[-1])
        if of_operand is not None and own in (None, replace(of_operand, module="")):
            return of_operand
    return own


def _recorded(node: Node) -> Source | None:
    if _FUSED in node.meta:
        return cast(Source, node.meta[_FUSED][-1])
    return _innermost(node.meta.get("stack_trace") or "", _module_of(node))


def _is_aotautograds(node: Node) -> bool:
    """Whether AOTAutograd added the node, for which it records no module and not always a line.

    It adds updates of inputs and buffers after the model, and sums of gradients.
    """
    is_update = node.target is torch.ops.aten.copy_.default
    return is_update or "\nGradient addition node" in node.meta.get("stack_trace", "")


def line_of(node: Node) -> str:
    """The line that a node comes from, for messages; or that it is not recorded."""
    source = source_of(node)
    return f"{source}: {source.code}" if source else "its line in the model is not recorded"


def fused_sources(node: Node) -> tuple[Source, ...]:
    """The other lines of a node whose kernel fuses operators, in program order."""
    others = [each for each in node.meta.get(_FUSED, ()) if each != source_of(node)]
    return tuple(dict.fromkeys(others))


def fuse_lines(kernel: Node, operators: Iterable[Node]) -> None:
    """Attributes a kernel to the lines of all operators that it computes, in program order."""
    kernel.meta |= lines_of(operators)


def lines_of(operators: Iterable[Node]) -> dict[str, Any]:
    """The `meta` of a kernel that computes several operators, in program order: their lines."""
    lines: list[Source] = []
    for each in operators:
        source = source_of(each)
        lines += [*fused_sources(each), source] if source is not None else []
    return {_FUSED: lines} if lines else {}


def frames_of(stack_trace: str) -> list[re.Match[str]]:
    """The frames of a stack trace in the user's code, outermost first."""
    frames = _FRAME.finditer(stack_trace)
    return [frame for frame in frames if not is_installed(frame["file"])]


def _module_of(node: Node) -> str:
    """The path of the innermost module that a node is in and that calls others: "layer1.0".

    Layers, such as `nn.Conv2d`, are left out: what one line calls would be in many places.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, kind in stack.values() if not _is_layer(kind)]
    return printable(called_module(paths[-1])) if paths else ""


def _is_layer(kind: type | str) -> bool:
    """Whether a class of modules is PyTorch's and calls no other modules.

    Args:
        kind: the class; its name in a `torch.export.ExportedProgram`.
    """
    defined_in = kind.rpartition(".")[0] if isinstance(kind, str) else kind.__module__
    return defined_in.startswith("torch.nn.modules.") and defined_in not in _CALLS_MODULES


@lru_cache(maxsize=1024)
def _innermost(stack_trace: str, module: str) -> Source | None:
    """Cached, because many nodes come from one line."""
    frames = frames_of(stack_trace)
    if not frames:
        return None
    frame = frames[-1]
    file, code = printable(frame["file"]), printable(frame["code"].strip())
    return Source(file, int(frame["line"]), code, module)
