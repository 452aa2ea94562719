"""Dynamo's code for a model, with the model's program instead of AOTAutograd's code around it."""

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from nimble_fx.frontend.recorded_run import RecordedCall
from nimble_fx.runtime.fastest import winner_of
from nimble_fx.torch_internals.dynamo.entries import is_evaluating_frames
from nimble_fx.torch_internals.names import is_any_autocast_enabled, pytree


def direct_call(recorded: RecordedCall, code: FunctionType, graph: str) -> FunctionType:
    """Dynamo's code, which calls the program directly if AOTAutograd adds nothing to it.

    In the recorded call Dynamo's code must have passed each input of the program, and returned
    outputs of the program, as they were. Whether it did is seen by calling it again, with the
    outputs of then instead of a call of its graph.

    Args:
        recorded: a call of the model without gradients, as are all later ones.
        code: Dynamo's code, without effects besides those of its graph.
        graph: the global name by which it calls its graph.
    """
    if len(recorded.runs) != 1 or recorded.runs[0].is_wrapped or is_any_autocast_enabled():
        return code
    (run,), arguments, passed = recorded.runs, recorded.arguments, list[Any]()

    def record(*args: Any) -> Sequence[Any]:
        passed.extend(args)
        return run.outputs

    returned = _calling(code, graph, record)(*arguments.args, **arguments.kwargs)
    leaves, expected = map(pytree.tree_leaves, (returned, recorded.returned))
    if not (_are_same(passed, run.inputs) and _are_same(leaves, expected)):
        return code
    program, wrapped = winner_of(run.run) or run.run, code.__globals__[graph]

    def call(*args: Any) -> Sequence[Any]:
        if is_evaluating_frames():  # Dynamo would compile the frames of the program's run
            outputs: Sequence[Any] = wrapped(*args)
            return outputs
        return program(list(args))

    return _calling(code, graph, call)


def _calling(code: FunctionType, graph: str, function: Any) -> FunctionType:
    """Dynamo's code, which calls a function instead of its graph."""
    scope = code.__globals__ | {graph: function}
    return FunctionType(code.__code__, scope, code.__name__, None, code.__closure__)


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two lists have the same objects."""
    return list(map(id, some)) == list(map(id, others))
