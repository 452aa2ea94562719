"""A function that does what Dynamo's code for a model does, without what changes nothing."""

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from types import FunctionType
from typing import Any

import torch

from nimble_fx.codegen.emit_call import emit_call
from nimble_fx.codegen.traceback_text import show_text
from nimble_fx.errors import UnsupportedError
from nimble_fx.frontend.calls.call_expressions import CallExpressions, call_expressions
from nimble_fx.frontend.calls.graph_call import graph_call
from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.ir.scheduled_program import file_name
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.compiled_graph import are_same
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.names import is_any_autocast_enabled, pytree

_log = logging.getLogger(__name__)

Arranged = Callable[[Sequence[Any]], Sequence[Sequence[Any]]]
"""A function that distributes the arguments of a call over lists."""


def direct_call(
    name: str, code: FunctionType, graph: str, example: Arguments
) -> FunctionType | None:
    """A function `call(args, kwargs)` that calls a model's program directly.

    It fetches parameters and buffers by the same names as Dynamo's code, and returns the same
    lists, dicts and tuples. That it passes and returns the same is seen in one call of each, in
    which the program does not run.

    Args:
        name: the model's.
        code: Dynamo's code, without effects besides those of its graph, which was called.
        graph: the global name by which it calls its graph.
        example: the arguments of a call; later ones are in the same state of PyTorch.

    Returns:
        None if AOTAutograd may do more than to call the program, or the code does more than to
        fetch and return. The log has the reason.
    """
    try:
        return _direct_call(name, code, graph, example)
    except Exception as error:  # whatever code raises that cannot take expressions or empty tensors
        _log.info("%s: calls run Dynamo's code: %s", name, error)
        return None


def _direct_call(name: str, code: FunctionType, graph: str, example: Arguments) -> FunctionType:
    """The function, as for `direct_call`.

    Raises:
        UnsupportedError: it would not do what Dynamo's code does.
        Exception: other errors of code that does more.
    """
    if is_any_autocast_enabled() or torch.is_grad_enabled():
        raise UnsupportedError("AOTAutograd switches autocast and gradients off")
    if are_fake(example.tensors):
        raise UnsupportedError("a captured graph cannot take fake tensors")
    call = graph_call(code, graph, example)
    parts = call_expressions(code, graph, example, len(call.outputs))
    program, arranged = _by_lists(call.program)
    text = emit_call(arranged(parts.passed), parts.returned)
    passed: list[Any] = []

    def record(*lists: Sequence[Any]) -> Sequence[Any]:
        passed.extend(chain(*lists))
        return call.outputs

    returned = _loaded(text, name, code, parts, record)(example.args, dict(example.kwargs))
    (leaves, spec), (theirs, whole) = map(pytree.tree_flatten, (returned, call.returned))
    are_passed = are_same(passed, list(chain(*arranged(call.inputs))))
    if not (are_passed and spec == whole and are_same(leaves, theirs)):
        raise UnsupportedError("it changes arguments or results")
    return _loaded(text, name, code, parts, program)


def _by_lists(program: Boxed) -> tuple[Callable[..., Sequence[Any]], Arranged]:
    """A function that runs a program, and one that arranges a list of all arguments for it."""
    if isinstance(program, FrozenProgram):
        return program.run, program.split
    return program, lambda args: (args,)


def _loaded(
    text: str,
    name: str,
    code: FunctionType,
    parts: CallExpressions,
    program: Callable[..., Sequence[Any]],
) -> FunctionType:
    """Loads the text of a call with the free variables of Dynamo's code and a program."""
    names, cells = code.__code__.co_freevars, code.__closure__ or ()
    free = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    scope: dict[str, Any] = {**free, **parts.classes, "program": program}
    file = f"<nimble_fx {file_name(f'call of {name}', text)}>"
    exec(compile(text, file, "exec"), scope)
    call: FunctionType = scope.pop("call")  # or its globals would be a reference cycle
    show_text(call.__code__, text)
    return call
