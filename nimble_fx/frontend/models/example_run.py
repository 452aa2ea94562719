"""Runs a model once on example inputs, and its backward, so that all of it is compiled."""

import re
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import OptionError
from nimble_fx.frontend.models.model_function import Arguments, name_of
from nimble_fx.internal_files import is_internal
from nimble_fx.options import require_bool
from nimble_fx.torch_internals.leaves import tensors_in


def run_example(function: Callable[..., Any], arguments: Arguments, training: bool) -> None:
    """Calls a function once; in training runs the backward too, without writing to any `.grad`.

    Args:
        function: the model or its compiled version.
        arguments: the arguments of the call; it may write to them.
        training: whether to run with gradients, and the backward of all outputs that have one.

    Raises:
        OptionError: no output has a gradient.
    """
    with torch.set_grad_enabled(training):
        outputs = function(*arguments.args, **arguments.kwargs)
        if training:
            _backward(outputs)


def check_call(function: Callable[..., Any], arguments: Arguments) -> None:
    """Calls the model in eager, to check that it runs on the inputs.

    Raises:
        OptionError: the model raises an error; the message is shorter than Dynamo's.
    """
    try:
        with torch.no_grad():
            function(*arguments.args, **arguments.kwargs)
    except Exception as error:
        if isinstance(error, NotImplementedError) or re.search(r"\bmeta\b", str(error), re.I):
            return  # the inputs are valid; eager fails because they have no data
        hint = (
            ". A dict is taken as keyword arguments: for an argument that is a dict, pass (dict,)"
            if arguments.kwargs and not arguments.args
            else ""
        )
        raise OptionError(
            f"{name_of(function)}, called as it is with these example inputs, raises "
            f"{type(error).__name__}: {error}{_user_line(error)}{hint}"
        ) from error


def _user_line(error: Exception) -> str:
    """The user's line in which an error was raised; "" if there is none in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not is_internal(frame.filename)]
    return f" [{users[-1].filename}:{users[-1].lineno}: {users[-1].line}]" if users else ""


def check_training(training: object) -> None:
    """Checks the argument `training`, before any work.

    Raises:
        OptionError: it is neither True nor False, or is True where PyTorch makes no gradients.
    """
    require_bool("training", training)
    if training and torch.is_inference_mode_enabled():
        raise OptionError(
            "training=True is not valid in torch.inference_mode(): it has no gradients"
        )


def _backward(outputs: object) -> None:
    roots = [tensor for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
    if not roots:
        raise OptionError(
            "training=True needs an output that has a gradient, and none has: does a parameter or "
            "an input require one, and are the outputs tensors (in tuples, lists, dicts)?"
        )
    gradients = [torch.zeros_like(root) for root in roots]
    # A backward that is compiled while the graph is not retained could never retain it later.
    torch.autograd.grad(roots, _leaves(roots), gradients, retain_graph=True, allow_unused=True)


def _leaves(roots: list[Tensor]) -> list[Tensor]:
    """The leaves of the autograd graph: the tensors whose `.grad` a backward would write to."""
    seen: set[Any] = set()
    found: list[Tensor] = []
    stack: list[Any] = [root.grad_fn for root in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack += [following for following, _ in node.next_functions]
    return found
