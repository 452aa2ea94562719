"""Guards that are checked directly agree with Dynamo's own check; dead ones never pass."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.torch_internals.dynamo.entries import (
    DynamoEntry,
    is_evaluating_frames,
    is_ordinary_call,
    latest_entry,
)


def compiled(function: Callable[..., Any], *args: Any) -> DynamoEntry:
    """Dynamo's entry for a call."""
    torch.compile(function, backend="eager")(*args)
    entry = latest_entry(function.__code__)
    assert entry is not None
    return entry


def test_a_function_that_was_not_compiled_has_no_entry() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1

    assert latest_entry(function.__code__) is None


def test_the_latest_entry_is_that_of_the_last_call() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1

    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        small, large = compiled(function, torch.ones(2)), compiled(function, torch.ones(3))
        again = compiled(function, torch.ones(2))
    assert small.code is again.code is not large.code
    for x in (torch.zeros(2), torch.zeros(3), torch.zeros(2).double(), torch.zeros(2, 1)):
        fits = [entry.fits({"x": x}) for entry in (small, large)]
        assert fits == [x.shape == y.shape and x.dtype == y.dtype for y in map(torch.ones, (2, 3))]


def test_an_entry_whose_object_is_gone_never_fits() -> None:
    class Other:
        n = 1

    def function(x: Tensor, other: Any) -> Tensor:
        return x + other().n

    kind: Any = Other
    entry = compiled(function, torch.ones(2), kind)
    variables = {"x": torch.ones(2), "other": kind}
    assert entry.is_alive
    assert entry.fits(variables)
    torch._dynamo.reset()
    gc.collect()
    assert not entry.is_alive
    assert not entry.fits(variables)


class Net(nn.Module):
    """Reads a parameter, a buffer and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.n = nn.Linear(2, 2), 1
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: Tensor, y: dict[str, Tensor]) -> Any:
        return {"a": [self.layer(x) + self.shift * self.n], "b": (y["y"] + 1,)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (lambda net, y: None, []),
        (lambda net, y: net.shift.add_(1), []),
        (lambda net, y: setattr(net, "n", net.n + 1), ["n"]),
        (lambda net, y: setattr(net, "shift", net.shift + 1), ["update"]),
        (lambda net, y: SEEN.append(1), ["SEEN"]),
        (lambda net, y: y.update(z=y["y"] + 1), ["update"]),
        (lambda net, y: y["more"].append(y["y"]), ["an item of a list or dict"]),
    ],
)
def test_what_code_does_besides_calling_a_graph_is_named(
    changes: Callable[[Net, dict[str, Any]], object], expected: list[str]
) -> None:
    net = Net()

    def function(x: Tensor, y: dict[str, Any]) -> Any:
        result = net(x, y)
        changes(net, y)
        return result

    entry = compiled(function, torch.ones(2), {"y": torch.ones(2), "more": []})
    assert [name for name in entry.effects if name in expected] == expected, entry.effects
    assert bool(entry.effects) == bool(expected)


SEEN: list[int] = []


def test_calls_in_compiled_code_and_under_modes_are_not_ordinary() -> None:
    assert is_ordinary_call()
    assert not torch.compile(is_ordinary_call, backend="eager")()
    with torch.compiler.set_stance("force_eager"):
        assert not is_ordinary_call()
    with torch._subclasses.FakeTensorMode():
        assert not is_ordinary_call()
    seen = []

    def traced(x: Tensor) -> Tensor:
        seen.append(is_ordinary_call())
        return x + 1

    torch.jit.trace(traced, torch.ones(2), check_trace=False)
    assert seen == [False]


def test_frames_are_evaluated_in_code_that_dynamo_has_compiled() -> None:
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        seen.append(is_evaluating_frames())
        return x + 1

    function(torch.ones(2))
    torch.compile(function, backend="eager")(torch.ones(2))
    function(torch.ones(2))
    assert seen == [False, True, False]
