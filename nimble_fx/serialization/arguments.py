"""Arguments of operators as JSON and back, exactly: -0.0, nan, dtypes, slices, nested lists.

Numbers, text, true, false and null are themselves, a list is a list of arguments, and anything that
JSON lacks is an object with one member: `{"value": "relu"}` is the value with that name,
`{"dtype": "float32"}` a dtype.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Arg, Ref
from nimble_fx.serialization.json_field import Field

MAX_DEPTH = 16
"""The deepest nesting of lists; operators take lists of lists of tensors, and none deeper."""


def _by_name(kind: type) -> dict[str, Any]:
    """The constants of a type in `torch`, by the names that they print."""
    found = [value for value in vars(torch).values() if isinstance(value, kind)]
    return {str(value).removeprefix("torch."): value for value in found}


DTYPES: dict[str, torch.dtype] = _by_name(torch.dtype)
_LAYOUTS = _by_name(torch.layout)
_FORMATS = _by_name(torch.memory_format)
_CONSTANTS = {"dtype": DTYPES, "layout": _LAYOUTS, "memory_format": _FORMATS}


def constant_name(constant: object) -> str:
    """The name of a dtype, layout or memory format: "float32"."""
    return str(constant).removeprefix("torch.")


def encode_argument(arg: Arg) -> Any:
    """An argument as JSON.

    Raises:
        FileError: its type cannot be stored.
    """
    if type(arg) is Ref:
        return {"value": arg.name}
    if arg is None or type(arg) in (bool, int, str):
        return arg
    if type(arg) in (tuple, list):
        return [encode_argument(item) for item in arg]
    match arg:
        case float():
            return arg if math.isfinite(arg) else {"float": repr(arg)}
        case complex():
            return {"complex": [encode_argument(arg.real), encode_argument(arg.imag)]}
        case slice():
            return {"slice": [encode_argument(part) for part in (arg.start, arg.stop, arg.step)]}
        case torch.device():
            return {"device": str(arg)}
        case torch.dtype() | torch.layout() | torch.memory_format():
            return {type(arg).__name__: constant_name(arg)}
    raise FileError(f"an argument of type {type(arg).__name__} cannot be stored: {arg!r}")


def decode_argument(field: Field, depth: int = 0) -> Arg:
    """The argument in a field.

    Raises:
        FileError: the field is not an argument.
    """
    value = field.value
    if depth > MAX_DEPTH:
        raise field.error(f"nested at most {MAX_DEPTH} deep")
    if value is None or type(value) is bool:
        return value
    if type(value) is str:
        return field.text()
    if type(value) is list:
        return tuple([decode_argument(item, depth + 1) for item in field.items()])
    if type(value) is dict:
        return _tagged(field, depth)
    return field.number()


def decode_device(field: Field) -> torch.device:
    """The device with the name in a field."""
    try:
        return torch.device(field.line())
    except RuntimeError as error:
        raise field.error("the name of a device") from error


def decode_dtype(field: Field) -> torch.dtype:
    """The dtype with the name in a field."""
    dtype: torch.dtype = _constant(field, "dtype")
    return dtype


def _tagged(field: Field, depth: int) -> Arg:
    """The argument in an object with one member, whose name is its kind."""
    members = list(field.members().items())
    if len(members) != 1:
        raise field.error("an argument: an object with one member")
    kind, inner = members[0]
    if kind in _CONSTANTS:
        return _constant(inner, kind)
    if kind not in _SPECIAL:
        raise field.error(f"an argument: one of {', '.join(sorted({*_SPECIAL, *_CONSTANTS}))}")
    return _SPECIAL[kind](inner, depth + 1)


def _constant(field: Field, kind: str) -> Any:
    name = field.text()
    if name not in _CONSTANTS[kind]:
        raise field.error(f"a {kind} of this torch")
    return _CONSTANTS[kind][name]


def _float(field: Field, depth: int = 0) -> float:
    if field.value not in ("nan", "inf", "-inf"):
        raise field.error("nan, inf or -inf")
    return float(field.value)


def _slice(field: Field, depth: int) -> slice:
    parts = [decode_argument(part, depth) for part in field.items()]
    if len(parts) != 3:
        raise field.error("start, stop and step")
    return slice(*parts)


def _complex(field: Field, depth: int) -> complex:
    parts = [decode_argument(part, depth) for part in field.items()]
    if len(parts) != 2 or any(type(part) is not float for part in parts):
        raise field.error("two floating-point numbers")
    return complex(*parts)


_SPECIAL: dict[str, Callable[[Field, int], Arg]] = {
    "value": lambda field, depth: Ref(field.name()),
    "float": _float,
    "complex": _complex,
    "slice": _slice,
    "device": lambda field, depth: decode_device(field),
}
