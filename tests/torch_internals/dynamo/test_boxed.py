"""Boxed callables follow the convention of PyTorch's AOTAutograd."""

from collections.abc import Sequence
from typing import Any

import torch
from functorch.compile import aot_function
from torch.fx import GraphModule

from nimble_fx.torch_internals.dynamo.boxed import boxed

received: list[object] = []


@boxed
def function(args: list[Any]) -> Sequence[Any]:
    received.append(args)
    return [torch.full((2,), 7.0)]


@boxed
class Program:
    """What is called is an object."""

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return function(args)


def test_aot_autograd_passes_one_list() -> None:
    for run in (function, Program()):

        def compiler(gm: GraphModule, inputs: Sequence[Any], run: Any = run) -> Any:
            return run

        received.clear()
        compiled = aot_function(torch.sin, compiler)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 7.0))
        assert [type(args) for args in received] == [list]
