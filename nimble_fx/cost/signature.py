"""What a task's time depends on, as text: its operator, and what that is given."""

from collections.abc import Mapping

from nimble_fx.ir.symbolic_sizes import number, numbers
from nimble_fx.ir.task_graph import (
    Arg,
    Ref,
    ScalarType,
    Task,
    TensorType,
    TupleType,
    Type,
    dtype_name,
)
from nimble_fx.ir.task_graph import target_name as operator_name


def signature(task: Task, types: Mapping[str, Type | None], cold: Mapping[str, int]) -> str:
    """What tasks have in common that take the same time.

    Such as "aten.add.Tensor(f32[2, 3]{3, 1}, f32[3]{1} cold 4096, alpha=2)". Cost: microseconds.

    Args:
        task: one that launches.
        types: of all values, by name.
        cold: the bytes that are read between two reads of a parameter; see `timing.cold_values`.

    Raises:
        UnsupportedError: a size is symbolic (see `sizes.concrete`).
    """

    def given(arg: Arg) -> str:
        if isinstance(arg, Ref):
            described = _described(types[arg.name])
            return f"{described} cold {cold[arg.name]}" if arg.name in cold else described
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(given, arg))}]"
        return repr(arg)  # 1 is not 1.0

    args = [*map(given, task.args), *(f"{name}={given(arg)}" for name, arg in task.kwargs)]
    return f"{operator_name(task.target)}({', '.join(args)})"


def _described(value: Type | None) -> str:
    match value:
        case TensorType(shape, stride, dtype, _):
            lengths, steps = (", ".join(map(str, numbers(each))) for each in (shape, stride))
            return f"{dtype_name(dtype)}[{lengths}]{{{steps}}}"
        case ScalarType(expression):
            return str(number(expression, {}))
        case TupleType(items):
            return f"({', '.join(_described(item) for item in items)})"
    return "None"
