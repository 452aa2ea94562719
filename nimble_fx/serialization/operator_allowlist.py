"""The operators that an untrusted file may call."""

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import does_what_its_schema_says, schema_of

_WITH_SIDE_EFFECTS = {"aten::from_file", "aten::_print"}
"""Operators with effects outside of tensors: the first maps, and may create, any file."""

_LOOPS = {
    *("aten::gru", "aten::lstm", "aten::rnn_relu", "aten::rnn_tanh"),
    *("aten::quantized_gru", "aten::quantized_lstm", "aten::diff", "aten::combinations"),
}
"""Operators that loop by their arguments, even to return types; a trace has those of the loop."""


def check_harmless(graph: TaskGraph) -> None:
    """Checks that a graph calls only PyTorch's own operators of tensors.

    Custom operators run code of this process, which may do anything with arguments from an
    untrusted file.

    Raises:
        FileError: the graph calls another operator.
    """
    for task in graph.tasks:
        target = task.target
        if not isinstance(target, OpOverload):
            continue
        name = schema_of(target).name
        is_refused = name in _WITH_SIDE_EFFECTS | _LOOPS
        if not does_what_its_schema_says(target) or is_refused:
            raise FileError(
                f"{task.name} calls {name}, which no file of an unknown source may call; if "
                "you know who wrote the file, load it with trust_source=True"
            )
