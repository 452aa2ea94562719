"""Which tasks take a workspace of cuBLAS, and how large a one.

PyTorch holds one workspace for each stream that launches a matrix product, of 8 MiB or more (32 on
Hopper). In a capture it lies in the graph's own memory, so twelve streams own twelve of them.
cuBLAS keeps partial sums there when it splits a product along the dimension that is summed over;
16 KiB suffice for its routines not to fail (cuBLAS, `cublasSetWorkspace`).
"""

from collections.abc import Mapping
from math import ceil, prod

import torch

from nimble_fx.ir.task_graph import Ref, Task, TaskGraph
from nimble_fx.ir.types import TensorType, Type
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import does_what_its_schema_says

SMALL_WORKSPACE = 1 << 20
"""Bytes of the largest block for which PyTorch's allocator takes 2 MiB of CUDA instead of 20."""

_TILE = 128
"""The rows and columns of a result that a thread block computes, and the least part of a sum that
is worth a split."""

_aten = torch.ops.aten
_FACTORS: dict[object, int] = {_aten.mm: 0, _aten.bmm: 0, _aten.addmm: 1, _aten.baddbmm: 1}
"""The position of the first factor among the arguments."""

_OTHERS = {
    *("_addmm_activation", "_grouped_mm", "_int_mm", "_scaled_grouped_mm", "_scaled_mm"),
    *("addbmm", "addmv", "addr", "dot", "mv", "vdot"),
}
_SOLVERS = ("_linalg", "cholesky", "linalg", "lu_", "triangular_solve")


def takes_workspace(task: Task) -> bool:
    """Whether a task may launch a routine of cuBLAS; an operator that is not PyTorch's may."""
    if not isinstance(task.target, OpOverload):
        return False
    name = task.target.overloadpacket.__name__
    return (
        not does_what_its_schema_says(task.target)
        or task.target.overloadpacket in _FACTORS
        or name in _OTHERS
        or name.startswith(_SOLVERS)
    )


def workspace_limit(graph: TaskGraph) -> int | None:
    """The bytes that suffice for the workspace of each stream, however its products are split.

    None if more may be useful, a size is symbolic, or the products of an operator are not known.
    """
    types = graph.types
    products = [task for task in graph.launching if takes_workspace(task)]
    fit = all(_fits_small_workspace(task, types) for task in products)
    return SMALL_WORKSPACE if fit else None


def _fits_small_workspace(task: Task, types: Mapping[str, Type | None]) -> bool:
    """Whether all partial sums of a product's tiles fit."""
    position = _FACTORS.get(getattr(task.target, "overloadpacket", None))
    factor = None if position is None else task.args[position]
    left = types.get(factor.name) if isinstance(factor, Ref) else None
    if not isinstance(left, TensorType) or not isinstance(task.type, TensorType):
        return False
    if not all(isinstance(size, int) for size in (*left.shape, *task.type.shape)):
        return False
    *batch, rows, columns = map(int, task.type.shape)
    n_splits = ceil(int(left.shape[-1]) / _TILE)
    tiles = prod(batch) * ceil(rows / _TILE) * ceil(columns / _TILE)
    nbytes = tiles * _TILE**2 * max(task.type.dtype.itemsize, torch.float32.itemsize) * n_splits
    return n_splits <= 1 or nbytes <= SMALL_WORKSPACE
