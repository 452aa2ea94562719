"""Custom operators that write to their arguments, and the rows that call them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.grammar.production import table


@torch.library.custom_op("nimble_grammar::push", mutates_args=("rows",))
def push(rows: Tensor, row: Tensor) -> None:
    """Puts a row before the others, of which the last one falls out."""
    rows.copy_(torch.roll(rows, 1, 0))
    rows[0] = row


@torch.library.custom_op("nimble_grammar::pop", mutates_args=("rows",))
def pop(rows: Tensor) -> Tensor:
    """Takes the first row out, and puts zeros behind the last."""
    first = rows[0].clone()
    rows.copy_(torch.roll(rows, -1, 0))
    rows[-1] = 0
    return first


@pop.register_fake
def _(rows: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[1:])


@torch.library.custom_op("nimble_grammar::exchange", mutates_args=("one", "other"))
def exchange(one: Tensor, other: Tensor, *, by: float) -> tuple[Tensor, Tensor]:
    """Scales one tensor, shifts another by it, and returns their old values."""
    old = one.clone(), other.clone()
    one.mul_(by)
    other.add_(one.sum())
    return old


@exchange.register_fake
def _(one: Tensor, other: Tensor, *, by: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(one), torch.empty_like(other)


@torch.library.custom_op("nimble_grammar::halve", mutates_args=("all", "last"))
def halve(all: Sequence[Tensor], last: Tensor | None = None) -> None:  # noqa: A002
    """Halves each tensor."""
    for each in (*all, *([] if last is None else [last])):
        each.mul_(0.5)


_WITHOUT_LAST = "torch.ops.nimble_grammar.halve([{m!}, {v!}])\n" * (torch.__version__ >= "2.12")
"""PyTorch 2.11 calls no operator whose written argument is left to its default."""

MUTATING = table(
    {
        "": """
            torch.ops.nimble_grammar.push({m!}, {v})
            torch.ops.nimble_grammar.push({h!}, {v})
            torch.ops.nimble_grammar.push({q!}, {f})
            torch.ops.nimble_grammar.halve([{m!}, {v!}], {f!})
            torch.ops.nimble_grammar.halve([{h!}], {m!})
            torch.ops.nimble_grammar.halve([], {f!})
        """
        + _WITHOUT_LAST,
        "v": "torch.ops.nimble_grammar.pop({m!})",
        "s": "torch.ops.nimble_grammar.pop({v!})",
        "mv": "torch.ops.nimble_grammar.exchange({m!}, {v!}, by=1.5)",
        "hm": "torch.ops.nimble_grammar.exchange({h!}, {m!}, by=-0.5)",
    }
)
"""Not among `PRODUCTIONS`, whose rows are of ATen's operators."""
