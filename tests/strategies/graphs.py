"""DAGs and traced task graphs."""

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st

from nimble_fx.ir.dependencies import hazards
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType

SCALAR = TensorType((2, 3), (3, 1), torch.float32, torch.device("cpu"))
aten = torch.ops.aten


@st.composite
def dags(draw: st.DrawFn, max_vertices: int = 12) -> list[int]:
    """Rows of a DAG (see nimble_fx.ir.bitset_dag), from edgeless to complete."""
    n = draw(st.integers(0, max_vertices))
    density = draw(st.sampled_from([0.1, 0.25, 0.5, 1.0]))
    rows = []
    for u in range(n):
        later = [draw(st.floats(0, 1)) < density for _ in range(u + 1, n)]
        rows.append(sum(1 << (u + 1 + i) for i, edge in enumerate(later) if edge))
    return rows


@st.composite
def task_graphs(draw: st.DrawFn, max_tasks: int = 14, has_metadata: bool = True) -> TaskGraph:
    """Traced graphs: tasks that read, views, writes, random draws, several outputs.

    With metadata also sizes, and allocations like other tensors, neither of which reads data.
    """
    kinds = ["new", "new", "new", "view", "in place", "random"]
    kinds += ["size", "allocation"] if has_metadata else []
    tensors = [Input("x", SCALAR, ("x",)), Input("w", SCALAR, ("w",), static=True)]
    values: dict[str, tuple[str, ...]] = {value.name: value.holds for value in tensors}
    tasks: list[Task] = []
    for i in range(draw(st.integers(1, max_tasks))):
        recent = list(values)[-draw(st.integers(1, 6)) :]
        used = draw(st.lists(st.sampled_from(recent), min_size=0, max_size=3, unique=True))
        task = _task(draw(st.sampled_from(kinds)), f"t{i}", i, used, values)
        values[task.name] = task.holds
        tasks.append(task)
    after = hazards(task for task in tasks if task.launches)
    placed = [_with_after(task, after.get(task.name, ())) for task in tasks]
    outputs = draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=3, unique=True))
    return TaskGraph("drawn", tuple(tensors), (), tuple(placed), tuple(map(Ref, outputs)))


def _task(
    kind: str, name: str, index: int, used: list[str], values: dict[str, tuple[str, ...]]
) -> Task:
    """A view, a size, an in-place write, or an operator that makes a new value."""
    storages = tuple(dict.fromkeys(s for value in used for s in values[value]))
    args, tensors = tuple(map(Ref, used)), [value for value in used if values[value]]
    if kind == "size" and tensors:
        size = ScalarType(f"u{index}")
        return Task(name, aten.sym_size.int, (Ref(tensors[0]), 0), type=size, index=index)
    if kind == "view" and tensors:
        held, base = values[tensors[0]], (Ref(tensors[0]),)
        return Task(name, aten.alias.default, base, type=SCALAR, index=index, holds=held)
    if kind == "allocation" and tensors:
        return Task(
            name, aten.empty_like.default, (Ref(tensors[0]),), type=SCALAR, index=index,
            writes=(name,), allocates=(name,), holds=(name,),
        )  # fmt: skip
    if kind == "in place" and tensors:
        written = values[tensors[0]]
        read = tuple(dict.fromkeys(s for value in tensors[:2] for s in values[value]))
        return Task(
            name, aten.add_.Tensor, tuple(map(Ref, tensors[:2])), type=SCALAR, index=index,
            reads=read, writes=written, holds=written,
        )  # fmt: skip
    return Task(
        name, aten.stack.default, (args,), type=SCALAR, index=index, reads=storages,
        writes=(name,), allocates=(name,), holds=(name,), ordered=kind == "random",
    )  # fmt: skip


def _with_after(task: Task, after: tuple[str, ...]) -> Task:
    from dataclasses import replace

    return replace(task, after=after)


@st.composite
def topological_orders(draw: st.DrawFn, earlier: Mapping[str, Sequence[str]]) -> list[str]:
    """The keys in any order in which each comes after its values."""
    order: list[str] = []
    left = list(earlier)
    while left:
        ready = [name for name in left if not set(earlier[name]).intersection(left)]
        order.append(draw(st.sampled_from(ready)))
        left.remove(order[-1])
    return order


Given = tuple[int, tuple[int, ...]]
"""A kernel that a stream is given: the stream, and the earlier kernels that it waits for."""


@st.composite
def given_to_streams(draw: st.DrawFn, max_kernels: int = 10) -> list[Given]:
    """Kernels in launch order, on up to three streams, with waits for earlier ones."""
    n = draw(st.integers(1, max_kernels))
    earlier = [
        st.sets(st.integers(0, i - 1), max_size=2) if i else st.just(set()) for i in range(n)
    ]
    return [(draw(st.integers(0, 2)), tuple(sorted(draw(waits)))) for waits in earlier]
