"""Paths of modules, parameters and buffers, read from Dynamo's text for them."""

import ast
import re
from collections.abc import Sequence

MODULE_DICTS = {"_modules", "_parameters", "_buffers"}
_STEP = re.compile(r"""\[('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\]]*)\]|\.(\w+)""")


def path_steps(path: str) -> list[str]:
    """The steps of a path that Dynamo wrote: "self", "fc" for `L['self'].fc`."""
    return [_key(key) if key else attribute for key, attribute in _STEP.findall(path)]


def is_in_module(steps: Sequence[str]) -> bool:
    """Whether steps lead to something in a module, such as a parameter."""
    return not MODULE_DICTS.isdisjoint(steps)


def module_path(steps: Sequence[str]) -> str:
    """Steps as the name that PyTorch gives a module, a parameter or a buffer: "layers.0.weight"."""
    return ".".join(step for step in steps if step not in MODULE_DICTS)


def _key(text: str) -> str:
    """A key in a source, without quotes."""
    return str(ast.literal_eval(text)) if text[0] in "'\"" else text
