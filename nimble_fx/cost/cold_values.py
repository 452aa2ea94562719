"""The values that are not in a cache when they are read, because much else was read meanwhile."""

from math import ceil

from nimble_fx.ir.symbolic_sizes import nbytes
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import TensorType

MAX_COLD_NBYTES = 64 << 20
"""More than a CPU's third-level cache (32 MiB and up) or a GPU's second-level cache (50 MB)."""


def cold_values(graph: TaskGraph) -> dict[str, int]:
    """The values that are cold when they are read: parameters, constants, and views of these.

    Each has the bytes that are read between two reads of it: those of all parameters, rounded up to
    three binary digits, and at most `MAX_COLD_NBYTES`.
    """
    parameters = [value for value in graph.inputs if value.static] + list(graph.constants)
    static = {storage for value in parameters for storage in value.holds}
    types = (value.type for value in parameters)
    total = sum(nbytes(each) for each in types if isinstance(each, TensorType))
    step = 1 << max(total.bit_length() - 3, 0)
    between = min(MAX_COLD_NBYTES, step * ceil(total / step))
    cold = (v.name for v in graph.values if v.holds and static.issuperset(v.holds))
    return dict.fromkeys(cold, between)
