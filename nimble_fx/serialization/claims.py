"""Whether what a file says of its values is so.

A schedule is proved for what its tasks say that they read, write, allocate and hold. A trace reads
that off the operators; a file may say anything. So the operators are asked again: their schemas, as
the verifier reads them, and what they return for tensors without data.
"""

from nimble_fx.errors import FileError
from nimble_fx.ir.symbolic_sizes import Sizes, concrete, symbols_of
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.serialization.memory_claims import MemoryOf
from nimble_fx.serialization.type_claims import TypesOf

_ANY_SIZE = 4
"""What sizes are taken for that data decide."""


def check_claims(graph: TaskGraph, sizes: Sizes) -> None:
    """Asks the operators for each task's type, and for what they do to memory.

    Sizes that data decide are believed; nothing but comments and predictions depends on the types
    of what tasks make. Cost: O(tasks), and for each operator and types of arguments a call without
    data.

    Args:
        graph: from a file; each value is made before it is used.
        sizes: what its symbolic sizes are in one call.

    Raises:
        FileError: it names the value, what the file says of it, and what is so.
    """
    undecided = symbols_of(graph) - sizes.keys()
    there = concrete(graph, {**sizes, **dict.fromkeys(undecided, _ANY_SIZE)})
    types, memory = TypesOf(undecided), MemoryOf()
    types.begin(graph.inputs)
    given = (*graph.inputs, *graph.constants)
    for value, one in zip(given, (*there.inputs, *there.constants), strict=True):
        types.given(value, one.type)
        memory.given(value)
    for task, at_sizes in zip(graph.tasks, there.tasks, strict=True):
        memory.made(task, types.made(task, at_sizes.type))
    for constant in graph.constants:
        if not constant.static:
            raise FileError(f"{constant.name} says that it is not static, but it is a constant")
