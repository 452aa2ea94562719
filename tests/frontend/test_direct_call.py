"""Dynamo's code calls the program directly if AOTAutograd passes everything on as it is."""

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from nimble_fx.frontend.direct_call import direct_call
from nimble_fx.frontend.model_function import Arguments
from nimble_fx.frontend.recorded_run import RecordedCall, RecordedRun
from nimble_fx.torch_internals.dynamo.boxed import boxed
from tests.support.eager import assert_same

Pair = namedtuple("Pair", ["first", "second"])
Values = Sequence[Any]


@boxed
def doubled(args: list[Any]) -> Sequence[Any]:
    """A program that returns as many new tensors as it takes."""
    outputs = [2 * value for value in args]
    args.clear()
    return outputs


def dynamos(*args: Any, **kwargs: Any) -> object:
    """What Dynamo's code does, with its global names."""
    return returns(compiled_graph(*inputs(args, kwargs)))  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Model:
    """A model whose code calls a graph that runs `doubled`.

    Attributes:
        inputs: picks the graph's inputs from the arguments.
        returns: makes what the model returns.
        before: what AOTAutograd does with the arguments.
        after: what it does with the results.
        n_wrapped: how many calls its code made.
    """

    inputs: Callable[[Values, dict[str, Any]], Values] = lambda args, kwargs: args
    returns: Callable[[Values], object] = tuple
    before: Callable[[Values], Values] = lambda args: args
    after: Callable[[Values], Values] = lambda outputs: outputs
    n_wrapped: int = 0

    def code(self) -> FunctionType:
        scope = {"inputs": self.inputs, "returns": self.returns, "compiled_graph": self._wrapped}
        return FunctionType(dynamos.__code__, scope)

    def _wrapped(self, *args: Any) -> Values:
        self.n_wrapped += 1
        inputs = list(self.before(args))
        outputs = doubled([*inputs])
        self.run = RecordedRun(doubled, inputs, outputs, is_wrapped=False)
        return self.after(outputs)

    def recorded(self, *args: Any, **kwargs: Any) -> RecordedCall:
        returned = self.code()(*args, **kwargs)
        return RecordedCall(Arguments(args, kwargs), [self.run], returned)

    def direct(self, *args: Any, **kwargs: Any) -> FunctionType:
        return direct_call(self.recorded(*args, **kwargs), self.code(), "compiled_graph")


RETURNS: dict[str, Callable[[Values], object]] = {
    "one": lambda outputs: outputs[-1],
    "tuple": tuple,
    "reversed": lambda outputs: list(reversed(outputs)),
    "one twice": lambda outputs: (outputs[0], outputs[-1], outputs[0]),
    "nested": lambda outputs: {"y": [outputs[0], (outputs[-1], 3, "b")], "z": Pair(None, 0.5)},
    "nothing": lambda outputs: (),
}


@given(order=st.permutations(range(4)), returns=st.sampled_from(list(RETURNS.values())))
def test_it_does_what_dynamos_code_does(
    order: list[int], returns: Callable[[Values], object]
) -> None:
    weight = torch.randn(3)

    def inputs(args: Values, kwargs: dict[str, Any]) -> Values:
        return [[*args, kwargs["z"][0], weight][k] for k in order]

    model = Model(inputs, returns)
    args, kwargs = (torch.randn(3), torch.randn(3)), {"z": [torch.randn(3)]}
    direct = model.direct(*args, **kwargs)
    assert model.n_wrapped == 1
    args, kwargs = (torch.randn(3), torch.randn(3)), {"z": [torch.randn(3)]}
    expected = returns([2 * value for value in inputs(args, kwargs)])
    assert_same(direct(*args, **kwargs), expected)
    assert model.n_wrapped == 1


ADDED = {
    "copied arguments": Model(before=lambda args: [args[0].clone()]),
    "fewer arguments": Model(before=lambda args: args[1:]),
    "added arguments": Model(before=lambda args: [*args, args[0]]),
    "views of results": Model(after=lambda outputs: [outputs[0].view(2), outputs[1]]),
    "results in another order": Model(after=lambda outputs: outputs[::-1]),
}


@pytest.mark.parametrize("added", ADDED)
def test_what_aot_autograd_adds_is_done_in_each_call(added: str) -> None:
    model = ADDED[added]
    before = model.n_wrapped
    x, y = torch.randn(2), torch.randn(2)
    direct = model.direct(x, y)
    assert_same(direct(x, y), model.code()(x, y))
    assert model.n_wrapped == before + 3


def test_so_is_what_cannot_be_seen_in_a_call() -> None:
    model, x = Model(), torch.randn(2)
    plain, code = model.recorded(x), model.code()
    (run,) = plain.runs
    assert direct_call(plain, code, "compiled_graph") is not code
    for runs in ([], [run, run], [replace(run, is_wrapped=True)]):
        assert direct_call(replace(plain, runs=runs), code, "compiled_graph") is code
    with torch.autocast("cpu", torch.bfloat16):  # which AOTAutograd switches off
        assert direct_call(plain, code, "compiled_graph") is code


def test_dynamo_compiles_no_frames_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Model(), torch.randn(2)
    direct = model.direct(x)
    for is_evaluating, n_wrapped in ((True, 2), (False, 2)):
        monkeypatch.setattr(
            "nimble_fx.frontend.direct_call.is_evaluating_frames", lambda it=is_evaluating: it
        )
        assert_same(direct(x), (2 * x,))
        assert model.n_wrapped == n_wrapped


class Transposing(nn.Module):
    """Changes the shape of its input, which AOTAutograd does after the graph."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch.ops.aten.t_(x)
        return y


def test_inputs_change_in_each_call() -> None:
    compiled = nimble_fx.compile(Transposing(), torch.randn(2, 3), guards=False)
    for _ in range(2):
        x = torch.randn(2, 3)
        assert_same(compiled(x), x.t() + 1)
        assert x.shape == (3, 2)


class Enabling(nn.Module):
    """Leaves gradients switched on."""

    def forward(self, x: Tensor) -> Tensor:
        torch.set_grad_enabled(True)
        return x * 2


def test_so_does_the_grad_mode() -> None:
    compiled = nimble_fx.compile(Enabling(), torch.randn(2), guards=False)
    for _ in range(2):
        with torch.no_grad():
            compiled(torch.randn(2))
            assert torch.is_grad_enabled()
