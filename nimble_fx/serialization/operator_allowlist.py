"""Which operators a file may call if nobody vouches for it."""

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import schema_of

_OF_PYTORCH = {"aten", "prims"}
_REACH_OUT = {"aten::from_file", "aten::_print"}
"""Operators of tensors that do something else: the first maps, and may make, any file."""


def check_harmless(graph: TaskGraph) -> None:
    """Lets through PyTorch's own operators of tensors.

    Others run code that was registered in this process for other callers; with arguments that a
    stranger chose they may do anything.

    Raises:
        FileError: the graph calls another operator.
    """
    for task in graph.tasks:
        target = task.target
        if not isinstance(target, OpOverload):
            continue
        name = schema_of(target).name
        if target.namespace not in _OF_PYTORCH or name in _REACH_OUT:
            raise FileError(
                f"{task.name} calls {name}, which is not one of PyTorch's operators of tensors; if "
                "you know who wrote the file, load it with trust_source=True"
            )
