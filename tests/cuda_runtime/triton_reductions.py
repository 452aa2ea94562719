"""Reductions and scans of Triton's interpreter, on whole arrays.

Its own call the combining function for each element, which takes too long.
"""

from typing import Any

import numpy as np
import triton.language as tl


def reduce(operation: Any, given: Any) -> list[Any]:
    """Combines pairs, and the results again, until one is left (`ReduceOps.generic_reduce`)."""
    is_whole = operation.axis is None
    given, axis = operation.unravel(given, operation.axis)
    dtypes, arrays = [value.dtype for value in given], [value.handle.data for value in given]
    n_dims = arrays[0].ndim
    while (n := arrays[0].shape[axis]) > 1:
        even = n // 2 * 2
        left, right = (_along(arrays, axis, slice(k, even, 2)) for k in (0, 1))
        made, last = _combined(operation, left, right, dtypes), _along(arrays, axis, slice(even, n))
        pairs = zip(made, last, strict=True)
        arrays = [np.concatenate(pair, axis) for pair in pairs] if even < n else made
    if not operation.keep_dims:
        arrays = _along(arrays, axis, 0)
    elif is_whole:
        arrays = [array.reshape((1,) * n_dims) for array in arrays]
    scalars = [array if array.shape else array.item() for array in arrays]
    return [operation.to_tensor(a, t) for a, t in zip(scalars, dtypes, strict=True)]


def scan(operation: Any, given: Any) -> list[Any]:
    """Combines each element with the one 1 before it, then 2, 4, ... (`ScanOps.generic_scan`)."""
    dtypes, arrays = [value.dtype for value in given], [value.handle.data for value in given]
    axis = operation.axis % arrays[0].ndim
    n, step = arrays[0].shape[axis], 1
    while step < n:
        before = [np.roll(array, step, axis) for array in arrays]  # so that shapes stay powers of 2
        made = _combined(operation, before, arrays, dtypes)
        kept = _along(arrays, axis, slice(0, step))
        changed = _along(made, axis, slice(step, n))
        arrays = [np.concatenate(pair, axis) for pair in zip(kept, changed, strict=True)]
        step *= 2
    return [operation.to_tensor(array, t) for array, t in zip(arrays, dtypes, strict=True)]


def _along(arrays: list[Any], axis: int, where: slice | int) -> list[Any]:
    return [array[(slice(None),) * axis + (where,)] for array in arrays]


def _combined(operation: Any, left: list[Any], right: list[Any], dtypes: list[Any]) -> list[Any]:
    """What the combining function makes of two lists of arrays, element by element."""
    arguments = [
        operation.to_tensor(np.ascontiguousarray(array), dtype)
        for side in (left, right)
        for array, dtype in zip(side, dtypes, strict=True)
    ]
    made = operation.combine_fn(*arguments)
    results = made if isinstance(made, tuple) else (made,)
    return [_like(array, value) for array, value in zip(left, results, strict=True)]


def _like(array: Any, value: Any) -> Any:
    """A result in the shape and type of an operand."""
    data = value.handle.data if isinstance(value, tl.tensor) else value
    return np.broadcast_to(data, array.shape or (1,)).reshape(array.shape).astype(array.dtype)
