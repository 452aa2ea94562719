"""Which values have left the caches since they were last read, and how much has been read since."""

from math import ceil

from nimble_fx.ir.symbolic_sizes import n_elements
from nimble_fx.ir.task_graph import TaskGraph, TensorType

MAX_COLD_NBYTES = 64 << 20
"""More than a cache holds: a processor's third level (32 MiB and up), a GPU's second (50 MB)."""


def cold_values(graph: TaskGraph) -> dict[str, int]:
    """The values that are cold when they are read: parameters, constants, and views of these.

    Each with the bytes that are read between two reads of it: those of all parameters, rounded up
    to three binary digits, and no more than caches hold.
    """
    given = [value for value in graph.inputs if value.static] + list(graph.constants)
    static = {storage for value in given for storage in value.holds}
    types = (value.type for value in given)
    total = sum(
        n_elements(each) * each.dtype.itemsize for each in types if isinstance(each, TensorType)
    )
    step = 1 << max(total.bit_length() - 3, 0)
    nbytes = min(MAX_COLD_NBYTES, step * ceil(total / step))
    cold = (v.name for v in graph.values if v.holds and static.issuperset(v.holds))
    return dict.fromkeys(cold, nbytes)
