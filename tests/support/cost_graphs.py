"""Graphs of one task or of a traced model, for what costs them."""

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx import GraphModule

from nimble_fx.ir.task_graph import Input, Ref, Size, Task, TaskGraph, TensorType
from nimble_fx.tracing.aten_to_tasks import trace

aten = torch.ops.aten


def tensor_type(*shape: Size, dtype: torch.dtype = torch.float32) -> TensorType:
    """Contiguous, on the CPU; of symbolic sizes all strides are 1."""
    stride: list[Size] = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        size, step = shape[i + 1], stride[i + 1]
        stride[i] = size * step if isinstance(size, int) and isinstance(step, int) else 1
    return TensorType(shape, tuple(stride), dtype, torch.device("cpu"))


def one_task(
    target: Callable[..., Any], made: Any, *args: Any, static: int | None = None
) -> TaskGraph:
    """A graph that calls `target` once; types among `args` are its inputs, one may be static."""
    inputs, given = [], []
    for i, arg in enumerate(args):
        if isinstance(arg, TensorType):
            inputs.append(Input(f"x{i}", arg, (f"x{i}",), static=i == static))
            arg = Ref(f"x{i}")
        given.append(arg)
    reads = tuple(value.name for value in inputs)
    task = Task(
        "task", target, tuple(given), type=made, reads=reads, writes=("task",),
        allocates=("task",), holds=("task",),
    )  # fmt: skip
    return TaskGraph("one", tuple(inputs), (), (task,), (Ref("task"),))


def traced(model: Callable[..., Tensor], *inputs: Tensor, dynamic: bool = False) -> TaskGraph:
    """The one graph that a model's inference is."""
    graphs: list[TaskGraph] = []

    def keep(gm: GraphModule, _: Any) -> Callable[..., Any]:
        placeholders = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        metadata = TracingContext.get().fw_metadata
        static = [] if metadata is None else metadata.static_input_indices
        graphs.append(trace(gm, "forward", {}, {placeholders[i] for i in static}).graph)
        return make_boxed_func(gm.forward)

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=dynamic)(*inputs)
    (graph,) = graphs
    return graph
