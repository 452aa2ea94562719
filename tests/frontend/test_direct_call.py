"""A direct call does what Dynamo's code did in a recorded call, if that was to run one program."""

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from nimble_fx.frontend.compiled_weights import CompiledWeights
from nimble_fx.frontend.direct_call import direct_call
from nimble_fx.frontend.model_function import Arguments
from nimble_fx.frontend.recorded_run import RecordedCall, RecordedRun
from nimble_fx.torch_internals.dynamo.boxed import boxed
from tests.support.eager import assert_same

Pair = namedtuple("Pair", ["first", "second"])


class Weights(nn.Module):
    """Two parameters and a buffer, in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.mean: Tensor
        self.register_buffer("mean", torch.randn(2))


@boxed
def doubled(args: list[Any]) -> Sequence[Any]:
    """A program that returns as many new tensors as it takes."""
    outputs = [2 * value for value in args]
    args.clear()
    return outputs


def recorded(
    args: Sequence[Tensor], inputs: Sequence[Any], returns: Callable[[Sequence[Tensor]], object]
) -> RecordedCall:
    """A call that ran `doubled` on some inputs, and what it returned of the outputs."""
    outputs = doubled([*inputs])
    run = RecordedRun(doubled, inputs, outputs, changes_inputs=False)
    return RecordedCall(Arguments(tuple(args), {}), [run], returns(outputs))


def never(*args: Any) -> None:
    """Stands for Dynamo's code."""
    raise AssertionError("a direct call does not need it")


RETURNS: dict[str, Callable[[Sequence[Tensor]], object]] = {
    "one": lambda outputs: outputs[-1],
    "tuple": tuple,
    "list": lambda outputs: list(reversed(outputs)),
    "one twice": lambda outputs: (outputs[0], outputs[-1], outputs[0]),
    "tuple of one": lambda outputs: (outputs[0],),
    "empty": lambda outputs: (),
}


@given(
    order=st.permutations(range(5)),
    n_inputs=st.integers(1, 5),
    returns=st.sampled_from(list(RETURNS.values())),
)
def test_inputs_and_outputs_are_where_they_were_in_the_recorded_call(
    order: list[int], n_inputs: int, returns: Callable[[Sequence[Tensor]], object]
) -> None:
    model = Weights()

    def values(x: Tensor, y: Tensor) -> list[Tensor]:
        all_values = [x, y, model.inner.weight, model.inner.bias, model.mean]
        return [all_values[k] for k in order[:n_inputs]]

    args = torch.randn(3), torch.randn(3)
    call = recorded(args, values(*args), returns)
    direct = direct_call(call, CompiledWeights(model), never)
    assert direct is not None
    model.inner.weight = nn.Parameter(torch.randn(2, 2))
    new = torch.randn(3), torch.randn(3)
    assert_same(direct(*new), returns([2 * value for value in values(*new)]))


X = torch.randn(2)
NONE = CompiledWeights(torch.relu)
PLAIN = recorded([X], [X], tuple)
(RUN,) = PLAIN.runs
OTHER_CALLS = {
    "keywords": replace(PLAIN, arguments=Arguments((), {"x": X})),
    "no program": replace(PLAIN, runs=[]),
    "two programs": replace(PLAIN, runs=[RUN, RUN]),
    "changed inputs": replace(PLAIN, runs=[replace(RUN, changes_inputs=True)]),
    "a copy of an argument": recorded([X], [X.clone()], tuple),
    "a number for the program": recorded([X], [3], tuple),
    "a view of an output": recorded([X], [X], lambda outputs: outputs[0].view(2)),
    "views in a tuple": recorded([X], [X], lambda outputs: (outputs[0].view(2),)),
    "a number beside an output": recorded([X], [X], lambda outputs: (outputs[0], 3)),
    "a named tuple": recorded([X, X], [X, X], lambda outputs: Pair(*outputs)),
    "a dict": recorded([X], [X], lambda outputs: {"y": outputs[0]}),
    "nothing": recorded([X], [X], lambda outputs: None),
}


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_there_is_none_for_any_other_call(call: str) -> None:
    assert direct_call(PLAIN, NONE, never) is not None
    assert direct_call(OTHER_CALLS[call], NONE, never) is None


def test_there_is_none_under_autocast_which_aot_autograd_switches_off() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert direct_call(PLAIN, NONE, never) is None


def test_dynamos_code_is_called_where_dynamo_would_compile_frames() -> None:
    calls = []

    def code(x: Tensor) -> object:
        calls.append(x)
        return (3 * x,)

    found = direct_call(PLAIN, NONE, code)
    assert found is not None
    direct = found

    class Called(nn.Module):
        def forward(self, x: Tensor) -> Any:
            torch._dynamo.graph_break()
            return direct(x)

    assert_same(torch.compile(Called(), backend="eager")(X), (3 * X,))
    assert len(calls) == 1
    assert_same(direct(X), (2 * X,))
    assert len(calls) == 1


MOVES: dict[str, Callable[[Weights], Any]] = {
    "a weight is gone": lambda model: model.inner.__delattr__("weight"),
    "a module is gone": lambda model: model.__delattr__("inner"),
    "a module is another": lambda model: setattr(model, "inner", nn.Linear(2, 2)),
}


@pytest.mark.parametrize("move", MOVES)
def test_dynamos_code_is_called_if_a_weight_is_not_where_it_was(move: str) -> None:
    model = Weights()
    weight = model.inner.weight
    call = recorded([X], [X, weight], lambda outputs: outputs[1])
    direct = direct_call(call, CompiledWeights(model), lambda x: "from code")
    assert direct is not None
    assert_same(direct(X), 2 * weight)
    MOVES[move](model)
    assert direct(X) == "from code"


class Transposing(nn.Module):
    """Changes the shape of its input, which AOTAutograd does after the graph."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch.ops.aten.t_(x)
        return y


def test_what_aot_autograd_does_after_the_graph_is_done_in_each_call() -> None:
    compiled = nimble_fx.compile(Transposing(), torch.randn(2, 3), guards=False)
    for _ in range(2):
        x = torch.randn(2, 3)
        assert_same(compiled(x), x.t() + 1)
        assert x.shape == (3, 2)
