"""Kernels of Inductor read parts of inputs, which a capture copies element by element."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import nimble_fx
from tests.support.inductor_kernels import compiled


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1:] @ torch.ones(6, 2),
        lambda x: x.chunk(2, 1)[1] @ torch.ones(3, 2),
        lambda x: x.view(4, 2, 3).transpose(0, 1) @ x.view(4, 2, 3).permute(1, 2, 0),
    ],
    ids=["rows", "columns", "heads"],
)
@pytest.mark.parametrize("view", [lambda x: x[::2, :6], lambda x: x[4:, ::2]], ids=["left", "even"])
def test_parts_of_an_input_with_gaps_are_captured(
    function: Callable[[Tensor], Tensor], view: Callable[[Tensor], Tensor]
) -> None:
    x = view(torch.randn(8, 12))
    run = compiled(function, device="virtual", on_fallback="error")
    torch.testing.assert_close(run(x), function(x))
    (program,) = nimble_fx.programs()
    assert program.status.frozen
