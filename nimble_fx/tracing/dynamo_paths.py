"""Paths of modules, parameters and buffers, read from Dynamo's text for them."""

import ast
import re
from collections.abc import Sequence

MODULE_DICTS = {"_modules", "_parameters", "_buffers"}
_MODEL = {"self", "fn", "model"}
"""The names of the model in its own code, in Dynamo's functions and in `unique_function`."""

_STEP = re.compile(r"""\[('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\]]*)\]|\.([^.\[]+)""")


def path_steps(path: str) -> list[str]:
    """The steps of a path that Dynamo wrote: "self", "fc" for `L['self'].fc`."""
    return [_key(key) if key else attribute for key, attribute in _STEP.findall(path)]


def is_in_module(steps: Sequence[str]) -> bool:
    """Whether steps lead to something in a module, such as a parameter."""
    return not MODULE_DICTS.isdisjoint(steps)


def module_path(steps: Sequence[str]) -> str:
    """Steps as the name that PyTorch gives a module, a parameter or a buffer: "layers.0.weight"."""
    return ".".join(step for step in steps if step not in MODULE_DICTS)


def called_module(text: str) -> str:
    """The path of a module that a model or function calls: "layers.0", or "encoder.layers.0".

    Args:
        text: what Dynamo wrote for it: `L['self'].layers[0]`, or `L['encoder'].layers[0]` in a
            function; a `torch.export.ExportedProgram` has the path itself.
    """
    if not text.startswith(("L[", "G[")):
        return text
    name, *others = path_steps(text)
    is_model = text.startswith("L[") and name in _MODEL
    return module_path(others if is_model or name.startswith("__import_") else [name, *others])


def _key(text: str) -> str:
    """A key in a source, without quotes."""
    return str(ast.literal_eval(text)) if text[0] in "'\"" else text
