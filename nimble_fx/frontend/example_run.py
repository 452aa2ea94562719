"""One call of a model, and its backward, so that all of it is traced."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import OptionError
from nimble_fx.frontend.model_function import Arguments, name_of
from nimble_fx.torch_internals.names import pytree

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def run_example(function: Callable[..., Any], arguments: Arguments, training: bool) -> None:
    """Calls a function once; in training, backward too, which accumulates into no `.grad`.

    Args:
        function: what to call.
        arguments: what to call it with; it may write to them.
        training: with gradients, and the backward of all outputs that have one.

    Raises:
        OptionError: no output has a gradient.
    """
    with torch.set_grad_enabled(training):
        outputs = function(*arguments.args, **arguments.kwargs)
        if training:
            _backward(outputs)


def check_call(function: Callable[..., Any], arguments: Arguments) -> None:
    """Whether the model takes the inputs at all.

    Raises:
        OptionError: it does not; the message is shorter than Dynamo's.
    """
    try:
        with torch.no_grad():
            function(*arguments.args, **arguments.kwargs)
    except Exception as error:
        if isinstance(error, NotImplementedError) or re.search(r"\bmeta\b", str(error), re.I):
            return  # it is not the inputs, but that they have no data
        raise OptionError(
            f"{name_of(function)} does not take these example inputs; called with them it raises "
            f"{type(error).__name__}: {error}{_users_line(error)}"
        ) from error


def _users_line(error: Exception) -> str:
    """Where in the user's code an error came up; nothing if that is in PyTorch alone."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f" [{users[-1].filename}:{users[-1].lineno}: {users[-1].line}]" if users else ""


def check_training(training: object) -> None:
    """Refuses what is not a yes or a no, before any work.

    Raises:
        OptionError: it is neither True nor False.
    """
    if type(training) is not bool:
        raise OptionError(f"training={training!r:.99} is not valid; it takes True or False")


def _backward(outputs: object) -> None:
    leaves = pytree.tree_leaves(outputs)
    roots = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    if not roots:
        raise OptionError(
            "training=True needs an output that has a gradient, and none has: does a parameter or "
            "an input require one, and are the outputs tensors (in tuples, lists, dicts)?"
        )
    gradients = [torch.zeros_like(root) for root in roots]
    torch.autograd.grad(roots, _variables(roots), gradients, allow_unused=True)


def _variables(roots: list[Tensor]) -> list[Tensor]:
    """The leaves of autograd's graph above the roots: all that a backward would accumulate into."""
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
