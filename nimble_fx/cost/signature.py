"""Signatures of tasks: all that their time depends on, as text."""

from collections.abc import Mapping

from nimble_fx.ir.symbolic_sizes import number, numbers
from nimble_fx.ir.task_graph import Arg, Ref, Task
from nimble_fx.ir.task_graph import target_name as operator_name
from nimble_fx.ir.types import ScalarType, TensorType, TupleType, Type, dtype_name


def signature(task: Task, types: Mapping[str, Type | None], cold: Mapping[str, int]) -> str:
    """A text that tasks share if they take the same time: the operator and its argument types.

    Such as "aten.add.Tensor(f32[2, 3]{3, 1}, f32[3]{1} cold 4096, alpha=2)". Cost: microseconds.

    Args:
        task: a launching task.
        types: the types of all values, by name.
        cold: the bytes that are read between two reads of a parameter; see
            `cold_values.cold_values`.

    Raises:
        UnsupportedError: a size is symbolic (see `symbolic_sizes.concrete`).
    """

    def described(arg: Arg) -> str:
        if isinstance(arg, Ref):
            text = _described_type(types[arg.name])
            return f"{text} cold {cold[arg.name]}" if arg.name in cold else text
        if isinstance(arg, (list, tuple)):
            return f"[{', '.join(map(described, arg))}]"
        return repr(arg)  # which tells 1 from 1.0

    args = [*map(described, task.args)]
    args += [f"{name}={described(arg)}" for name, arg in task.kwargs]
    return f"{operator_name(task.target)}({', '.join(args)})"


def _described_type(value: Type | None) -> str:
    match value:
        case TensorType(shape, stride, dtype, _):
            lengths, steps = (", ".join(map(str, numbers(each))) for each in (shape, stride))
            return f"{dtype_name(dtype)}[{lengths}]{{{steps}}}"
        case ScalarType(expression):
            return str(number(expression, {}))
        case TupleType(items):
            return f"({', '.join(_described_type(item) for item in items)})"
    return "None"
