"""Dtypes, layouts and memory formats among the arguments of an untrusted file.

PyTorch takes a number for each of these too, and a number that is none of them ends the process.
"""

from collections.abc import Mapping, Sequence

import torch

from nimble_fx.ir.task_graph import Arg
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import arguments_by_name, schema_of

_CLASSES = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
}


def wrong_enums(op: OpOverload, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> list[str]:
    """The arguments that should be a dtype, layout or memory format, but are something else.

    Args:
        op: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Returns:
        For each, what it is and should be: "memory_format is -1, not a torch.memory_format".
    """
    given = arguments_by_name(op, args, kwargs)
    wrong = []
    for parameter in schema_of(op).arguments:
        kind = str(parameter.real_type).removeprefix("Optional[").removesuffix("]")
        arg = given.get(parameter.name)
        if kind in _CLASSES and not isinstance(arg, _CLASSES[kind] | None):
            wrong.append(f"{parameter.name} is {arg!r}, not a torch.{_CLASSES[kind].__name__}")
    return wrong
