"""One call of a model, and its backward, so that all of it is traced."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nimble_fx.entry import Arguments
from nimble_fx.errors import OptionError


def rehearse(function: Callable[..., Any], arguments: Arguments, training: bool) -> None:
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
