"""Checks the claims of a file about its values against the operators.

The proof of a schedule relies on the storages that its tasks claim to read, write, allocate and
hold. A trace derives these from the operators, but a file may claim anything. So they are derived
again: from the schemas, as the verifier reads them, and from the results of fake tensors.
"""

from nimble_fx.errors import FileError
from nimble_fx.ir.symbolic_sizes import Sizes, concrete, symbols_of
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.serialization.memory_claims import MemoryClaims
from nimble_fx.serialization.type_claims import TypeClaims

_ANY_SIZE = 4
"""The value that is assumed for data-dependent sizes."""


def check_claims(graph: TaskGraph, sizes: Sizes) -> None:
    """Checks each task's type and memory effects against its operator.

    Data-dependent sizes are not checked; only comments and predictions depend on the types of
    results. Cost: O(tasks), and a call on fake tensors for each operator and argument types.

    Args:
        graph: from a file; each value is defined before it is used.
        sizes: the values of its symbolic sizes in one call.

    Raises:
        FileError: a claim is wrong; the message has the value, the claim, and what is right.
    """
    undecided = symbols_of(graph) - sizes.keys()
    at_sizes = concrete(graph, {**sizes, **dict.fromkeys(undecided, _ANY_SIZE)})
    types, memory = TypeClaims(undecided), MemoryClaims()
    types.begin(graph.inputs)
    inputs = (*graph.inputs, *graph.constants)
    for value, one in zip(inputs, (*at_sizes.inputs, *at_sizes.constants), strict=True):
        types.check_input(value, one.type)
        memory.check_input(value)
    for task, one_task in zip(graph.tasks, at_sizes.tasks, strict=True):
        memory.check_task(task, types.check_task(task, one_task.type))
    for constant in graph.constants:
        if not constant.static:
            raise FileError(f"{constant.name} says that it is not static, but it is a constant")
