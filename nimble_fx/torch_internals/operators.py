"""What PyTorch's dispatcher knows of an operator."""

from typing import Any

from nimble_fx.torch_internals.names import OpOverload, has_kernel_for_dispatch_key


def schema_of(op: OpOverload) -> Any:
    """The operator's schema: its arguments, returns, and which of them alias (a FunctionSchema)."""
    return op._schema


def is_composite(op: OpOverload) -> bool:
    """Whether it is made of other operators, which may return what they are given."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return bool(has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def overload_name(op: OpOverload) -> str:
    """The name of the overload: "Tensor" of `aten.add.Tensor`, "default" of `aten.relu.default`."""
    return str(op._overloadname)
