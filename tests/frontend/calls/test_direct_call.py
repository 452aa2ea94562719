"""Dynamo's code calls the program directly if AOTAutograd passes everything on as it is."""

import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._C._dynamo import eval_frame
from torch._dynamo.types import ConvertFrameReturn

import nimble_fx
from nimble_fx.frontend.calls.direct_call import direct_call
from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.runtime.compiled_graph import CompiledGraph, WatchedProgram
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.names import pytree
from tests.support.eager import assert_same
from tests.support.replaying import ReplayingDevice, frozen

Pair = namedtuple("Pair", ["first", "second"])
Values = Sequence[Any]


@boxed
def doubled(args: list[Any]) -> Sequence[Any]:
    """A program that returns as many new tensors as it takes."""
    outputs = [2 * value for value in args]
    args.clear()
    return outputs


def net() -> nn.Module:
    """A model with a parameter and, in a submodule, a buffer."""
    model, inner = nn.Module(), nn.Module()
    model.weight = nn.Parameter(torch.randn(3), requires_grad=False)
    inner.register_buffer("scale", torch.randn(3))
    model.inner = inner
    return model


@dataclass
class Model:
    """A model whose code, which is like Dynamo's, calls a graph that runs `doubled`.

    Attributes:
        inputs: the graph's inputs, as Python text.
        returns: what the code returns, as Python text.
        before: what AOTAutograd does with the arguments.
        after: what it does with the results.
        runs: the program.
        has_effects: whether AOTAutograd may do more than what a call shows.
        name: its name.
        n_wrapped: how many calls its code made.
    """

    inputs: Sequence[str] = ("args[0]", "args[1]")
    returns: str = "(outputs[0], outputs[1])"
    before: Callable[[Values], Values] = lambda args: args
    after: Callable[[Values], Values] = lambda outputs: outputs
    runs: Boxed = doubled
    has_effects: bool = False
    name: str = "Model"
    n_wrapped: int = 0
    net: nn.Module = field(default_factory=net)

    def code(self) -> FunctionType:
        text = f"""
def code_of(model):
    def code(*args, **kwargs):
        outputs = compiled_graph({", ".join(self.inputs)})
        return {self.returns}
    return code
"""
        self._watched = WatchedProgram(self.runs)
        graph = self._wrapped if self.has_effects else CompiledGraph(self._wrapped, self._watched)
        scope: dict[str, Any] = {"compiled_graph": graph, "Pair": Pair}
        exec(text, scope)
        code: FunctionType = scope["code_of"](self.net)
        return code

    def _wrapped(self, *args: Any) -> Values:
        self.n_wrapped += 1
        return self.after(self._watched.run(list(self.before(args))))

    def direct(self, *args: Any, **kwargs: Any) -> FunctionType | None:
        """What `direct_call` makes of its code, after a call with these arguments."""
        code = self.code()
        code(*args, **kwargs)
        made = direct_call(self.name, code, "compiled_graph", Arguments(args, kwargs))
        self.n_wrapped = 0
        return made


INPUTS = [
    "args[0]",
    "args[1]['a b']",
    "kwargs['z'][0]",
    "model._parameters['weight']",
    "model._modules['inner']._buffers['scale']",
]
RETURNS = [
    "outputs[-1]",
    "(outputs[0], outputs[2])",
    "[outputs[1], outputs[0], outputs[1]]",
    "{'y': [outputs[0], (outputs[1], 3, 'b')], 7: Pair(None, -0.5)}",
    "Pair(first=outputs[1], second=(outputs[0],))",
    "(outputs[0], args[0], model._parameters['weight'], True)",
    "((), outputs[0], ())",
    "([], {}, [outputs[0]])",
]


def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(3), {"a b": torch.randn(3)}), {"z": [torch.randn(3)]}


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@given(order=st.permutations(INPUTS), returns=st.sampled_from(RETURNS))
@torch.no_grad()  # a fuzzer runs properties without the fixtures of pytest
def test_it_does_what_dynamos_code_does(order: list[str], returns: str) -> None:
    model = Model(order, returns)
    args, kwargs = arguments()
    direct = model.direct(*args, **kwargs)
    assert direct is not None
    args, kwargs = arguments()
    model.net.inner = net().inner
    returned = direct(args, kwargs)
    assert model.n_wrapped == 0
    expected = model.code()(*args, **kwargs)
    assert_same(returned, expected)
    assert pytree.tree_structure(returned) == pytree.tree_structure(expected)


ADDED = {
    "copied arguments": Model(before=lambda args: [args[0].clone(), args[1]]),
    "fewer arguments": Model(before=lambda args: args[1:], returns="outputs[0]"),
    "more arguments": Model(before=lambda args: [*args, args[0]]),
    "other order": Model(before=lambda args: args[::-1]),
    "views of results": Model(after=lambda outputs: [outputs[0].view(1), outputs[1]]),
    "results in another order": Model(after=lambda outputs: outputs[::-1]),
    "a sum": Model(inputs=["args[0] + 1", "args[1]"]),
    "a number": Model(inputs=["args[0]", "2"]),
    "all of an input": Model(inputs=["*args[0]"], returns="outputs[0]"),
    "a method": Model(inputs=["args[0].t()", "args[1]"]),
    "a class": Model(returns="(outputs[0], type(args[0]))"),
    "a comparison": Model(returns="(outputs[0], args[0] == args[1])"),
    "a condition": Model(returns="(outputs[0] if args[0] is args[1] or args[0] else None)"),
    "a set": Model(returns="{3}"),
    "NaN": Model(returns="(outputs[0], float('nan'))"),
    "a second call": Model(returns="(outputs[0], compiled_graph(args[0], args[1])[1])"),
    "a deep result": Model(
        returns="__import__('functools').reduce(lambda each, _: [each], range(210), outputs[0])"
    ),
    "an empty list twice": Model(returns="(lambda each: (outputs[0], each, each))([])"),
    "a list twice": Model(returns="(lambda each: (each, each))([outputs[0]])"),
}


@pytest.mark.parametrize("added", ADDED)
def test_code_that_does_more_stays(added: str) -> None:
    assert ADDED[added].direct(torch.tensor([1.0]), torch.tensor([2.0])) is None


def test_so_does_code_around_which_autograd_does_what_no_call_shows() -> None:
    x = torch.randn(2)
    assert Model(("args[0]",), "outputs[0]").direct(x) is not None
    assert Model(("args[0]",), "outputs[0]", has_effects=True).direct(x) is None
    with torch.autocast("cpu", torch.bfloat16):  # which AOTAutograd switches off
        assert Model(("args[0]",), "outputs[0]").direct(x) is None
    with torch.enable_grad():  # and this
        assert Model(("args[0]",), "outputs[0]").direct(x) is None


def test_so_does_code_whose_program_never_ran_as_it_may_if_another_thread_compiles() -> None:
    model, x = Model(("args[0]",), "outputs[0]"), torch.randn(2)
    assert direct_call("Model", model.code(), "compiled_graph", Arguments((x,), {})) is None


def test_so_does_code_that_passes_less_than_a_frozen_program_takes() -> None:
    program = frozen(lambda x, y: x + y, *torch.zeros(2, 3), device=ReplayingDevice())
    model = Model(("args[0]",), "outputs[0]", before=lambda args: [*args, *args], runs=program)
    assert model.direct(torch.randn(3)) is None


def test_a_traceback_shows_what_is_fetched() -> None:
    x = torch.randn(3)
    direct = Model(INPUTS[3:], "outputs[0]").direct(x)
    assert direct is not None
    direct.__globals__["model"]._parameters.clear()
    with pytest.raises(KeyError) as caught:
        direct((x,), {})
    assert "model._parameters['weight']," in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ['"""', "<lambda>", "a\nb", "é"])
def test_any_name_of_a_model_will_do(name: str) -> None:
    x = torch.randn(2)
    direct = Model(name=name).direct(x, x + 1)
    assert direct is not None
    assert_same(direct((x, x), {}), (2 * x, 2 * x))


def test_dynamo_sees_no_frames_of_the_program() -> None:
    compiled = nimble_fx.compile(nn.Linear(2, 2), torch.randn(2, 2), guards=False)
    unguarded, codes = compiled._unguarded, list[CodeType]()
    assert unguarded is not None

    def see(frame: Any, *_: object) -> ConvertFrameReturn:
        codes.append(frame.f_code)
        return ConvertFrameReturn()

    before = eval_frame.set_eval_frame(see)  # type: ignore[arg-type]  # a mistake of its stubs
    try:
        with torch.no_grad():
            unguarded.call((torch.randn(2, 2),), {})
    finally:
        eval_frame.set_eval_frame(before)
        for code in codes:
            eval_frame.reset_code(code)  # or Dynamo would leave these alone from now on
    files = [code.co_filename for code in codes]
    assert any("unguarded_call" in file for file in files)
    assert not any("runtime" in file or "call_of" in file for file in files)
    assert unguarded._known.run.__code__.co_filename.startswith("<nimble_fx call_of_Linear_")


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
