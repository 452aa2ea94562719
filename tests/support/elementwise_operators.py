"""The elementwise operators that have a form in place, and calls of them."""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from nimble_fx.torch_internals.in_place_forms import elementwise_in_place_form

aten = torch.ops.aten


def overwriting_operators() -> list[OpOverload]:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    split = [name.removeprefix("aten::").partition(".") for name in sorted(names)]
    operators = [getattr(getattr(aten, name), overload or "default") for name, _, overload in split]
    return [operator for operator in operators if elementwise_in_place_form(operator)]


def called(operator: OpOverload, first: Tensor) -> Tensor:
    """The operator's result; what else it takes is like the first argument, or a 2."""
    args: list[Any] = [first]
    kwargs: dict[str, Any] = {}
    for parameter in operator._schema.arguments[1:]:
        kind = str(parameter.type).removeprefix("Optional[").removesuffix("]")
        like = torch.ones_like(first, dtype=torch.bool if parameter.name == "mask" else None)
        value = {"Tensor": like, "str": parameter.default_value or "floor"}.get(kind, 2)
        if parameter.kwarg_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return operator(*args, **kwargs)
