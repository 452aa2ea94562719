"""Graphs of one task or of a traced model, for tests of costs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph
from nimble_fx.ir.types import Size, TensorType
from nimble_fx.options import Options
from nimble_fx.program import Program
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.boxed import Boxed

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
    """The one graph that a model's inference is, with PyTorch's kernels."""
    graphs: list[TaskGraph] = []
    options = Options(policy="serial", freeze=False, on_fallback="error", fold_weights=False)

    class Kept(ThisMachine):
        def runner(
            self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
        ) -> Boxed:
            graphs.append(traced.graph)
            return make_boxed_func(gm.forward)

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return lower(gm, inputs, Compiler(gm, options, Kept(options)))

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=dynamic)(*inputs)
    (graph,) = graphs
    return graph
