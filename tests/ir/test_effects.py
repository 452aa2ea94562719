"""The effects of a call, by PyTorch's tags and schemas: what it writes to and where it draws."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nimble_fx.ir.effects import Effects
from tests.support.schedules import traced

CPU = frozenset({torch.device("cpu")})


@pytest.mark.parametrize(
    ("program", "drawn_on"),
    [
        (lambda x: x + torch.rand(2, 3), CPU),
        (lambda x: torch.nn.functional.dropout(x), CPU),
        (lambda x: torch.native_dropout(x, 0.5, True)[0], CPU),
        (lambda x: x.bernoulli(), CPU),
        (lambda x: x + torch.zeros(2, 3), frozenset()),
    ],
)
def test_it_draws_random_numbers_on_the_devices_of_what_is_drawn(
    program: Callable[[Tensor], Tensor], drawn_on: frozenset[torch.device]
) -> None:
    assert Effects.of(traced(program, torch.zeros(2, 3)).graph).drawn_on == drawn_on


def test_a_program_without_inputs_draws_where_its_tensors_are() -> None:
    graph = traced(lambda: torch.rand(3, device="meta")).graph
    assert Effects.of(graph).drawn_on == {torch.device("meta")}
