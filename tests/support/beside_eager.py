"""Runs one scenario twice: in eager, and with everything that it compiles compiled by nimble."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from nimble_fx.backend import nimble

Compile = Callable[..., Any]
"""What a scenario compiles with: it gives a function or a module back, and takes options."""

Scenario = Callable[[Compile], Any]

CPU: dict[str, Any] = {"policy": "nimble"}
VIRTUAL: dict[str, Any] = {"policy": "nimble", "device": "virtual", "seed": 7}

on_both_devices = pytest.mark.parametrize("options", [CPU, VIRTUAL], ids=["cpu", "virtual"])


def assert_as_eager(scenario: Scenario, options: dict[str, Any]) -> None:
    """What a scenario returns is what it returns in eager: values, dtypes, strides, no more None.

    Args:
        scenario: takes what compiles a function, and returns anything with tensors in it.
        options: of the backend.
    """
    expected = _seeded(scenario, lambda function, **_: function)
    torch.compiler.reset()
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, inputs: Sequence[Any], **how: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return nimble(gm, inputs, **how)

    ours = _seeded(scenario, partial(torch.compile, backend=backend, options=options))
    assert graphs  # else eager is compared with itself
    left, spec = pytree.tree_flatten(ours)
    right, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec
    for one, other in zip(left, right, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, check_stride=True)
            assert one.requires_grad == other.requires_grad
        else:
            assert one == other


def _seeded(scenario: Scenario, compile_: Compile) -> Any:
    torch.manual_seed(0)
    return scenario(compile_)
