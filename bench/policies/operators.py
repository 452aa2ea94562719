"""Which operators are compute-bound, and how many threads a task has."""

from math import prod

import torch

from nimble_fx.ir.task_graph import Task
from nimble_fx.ir.types import TensorType, TupleType, Type

_PRODUCTS = {
    *("mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv", "convolution"),
    *("convolution_backward", "_scaled_mm", "_grouped_mm"),
}


def multiplies_matrices(task: Task) -> bool:
    """Whether it is a matrix product or a convolution."""
    name = operator_name(task)
    return name in _PRODUCTS or "scaled_dot_product" in name


def operator_name(task: Task) -> str:
    """The operator's name without its namespace and overload: "mm"."""
    target = task.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return target.__name__


def n_elements(made: Type | None) -> int:
    """The number of elements that a task computes, which is about its number of threads."""
    if isinstance(made, TensorType):
        return prod(size for size in made.shape if isinstance(size, int))
    if isinstance(made, TupleType):
        return sum(map(n_elements, made.items))
    return 0
