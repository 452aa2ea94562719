"""Paths of modules, parameters and buffers, read from Dynamo's sources of them.

A source is the code with which Dynamo reads a value from variables: `L['self'].layers[0]`.
"""

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache

from torch.fx import GraphModule

MODULE_DICTS = {"_modules", "_parameters", "_buffers"}
_MODEL = {"self", "fn"}
"""The names of the model in its own code and in Dynamo's functions."""

_STEP = re.compile(r"""\[('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\]]*)\]|\.([^.\[]+)""")


def rename_modules(gm: GraphModule, own_source: Callable[[str], str]) -> None:
    """Replaces the sources of the modules that a Dynamo graph's operators are in.

    Args:
        gm: the graph; the ATen graphs that are made of it have the new sources too.
        own_source: returns the new one.
    """
    renamed = cache(own_source)  # many nodes are in one module
    for node in gm.graph.nodes:
        if (modules := node.meta.get("nn_module_stack")) is not None:
            new = {key: (renamed(source), kind) for key, (source, kind) in modules.items()}
            node.meta["nn_module_stack"] = new


def path_steps(source: str) -> list[str]:
    """The steps of a source: "self", "fc" for `L['self'].fc`."""
    return [_key(key) if key else attribute for key, attribute in _STEP.findall(source)]


def steps_in_model(source: str) -> list[str]:
    """The steps of a source without the name of the model, or of the Python module of a global."""
    steps = path_steps(source)
    is_model = source.startswith("L[") and steps[0] in _MODEL
    is_import = source.startswith("G[") and steps[0].startswith("__import_")
    return steps[1:] if is_model or is_import else steps


def is_in_module(steps: Sequence[str]) -> bool:
    """Whether steps lead to something in a module, such as a parameter."""
    return not MODULE_DICTS.isdisjoint(steps)


def named_steps(steps: Sequence[str]) -> list[str]:
    """The steps without the dictionaries that a module keeps modules, parameters, buffers in."""
    return [step for step in steps if step not in {*MODULE_DICTS, "__dict__"}]


def module_path(steps: Sequence[str]) -> str:
    """Steps as the name that PyTorch gives a module, a parameter or a buffer: "layers.0.weight"."""
    return ".".join(named_steps(steps))


def called_module(text: str) -> str:
    """The path of a module that a model or function calls: "layers.0", or "encoder.layers.0".

    Args:
        text: what Dynamo wrote for it: `L['self'].layers[0]`, or `L['encoder'].layers[0]` in a
            function; a `torch.export.ExportedProgram` has the path itself.
    """
    return module_path(steps_in_model(text)) if text.startswith(("L[", "G[")) else text


def _key(text: str) -> str:
    """A key in a source, without quotes."""
    return str(ast.literal_eval(text)) if text[0] in "'\"" else text
