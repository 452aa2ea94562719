"""Inputs and modules of a function have the names that the function's author gave them."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import UnsupportedError
from nimble_fx.frontend.models.own_source import OwnSource
from nimble_fx.program import Program

X = torch.randn(2, 4)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def of_free_variables() -> Callable[..., Tensor]:
    head, weights = layers(), [torch.randn(4)]

    def function(x: Tensor) -> Tensor:
        y: Tensor = head(x)
        return y * weights[0]

    return function


def of_defaults() -> Callable[..., Tensor]:
    one, scale, other = layers(), torch.randn(4), layers()

    def function(
        x: Tensor, encoder: nn.Module = one, shift: Tensor = scale, *, head: nn.Module = other
    ) -> Tensor:
        y: Tensor = head(encoder(x) + shift)
        return y

    return function


GLOBAL = layers()


def of_globals(x: Tensor) -> Tensor:
    y: Tensor = GLOBAL(x)
    return y


def of_names_of_models(model: Tensor, fn: Tensor) -> Tensor:
    return model + fn


def decorated() -> Callable[..., Tensor]:
    wrapped = of_free_variables()

    @functools.wraps(wrapped)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        return wrapped(*args, **kwargs)

    return wrapper


def decorated_with_other_parameters() -> Callable[..., Tensor]:
    def wrapped(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @functools.wraps(wrapped)
    def wrapper(scale: Tensor, x: Tensor) -> Tensor:
        return wrapped(x, scale)

    return wrapper


def of_any_number(x: Tensor, *nets: nn.Module, **shifts: Tensor) -> Tensor:
    for net in nets:
        x = net(x)
    return x + shifts["a 'b"]


def of_any(x: Tensor, *rest: Tensor, shift: Tensor) -> Tensor:
    return x * sum(rest) + shift


def wraps_a_partial() -> Callable[..., Tensor]:
    wrapped = functools.partial(lambda x, *others: x * others[0] + others[1], X)

    @functools.wraps(wrapped)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        y: Tensor = wrapped(*args, **kwargs)
        return y

    return wrapper


class TakesTwo(nn.Sequential):
    """Has a call of its own."""

    def __call__(self, y: Tensor, scale: Tensor) -> Tensor:
        z: Tensor = super().__call__(y)
        return z * scale


def of_models(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return y


def of_modules(encoder: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = encoder(x)
    return y


class Model:
    """An object that is no module."""

    def __init__(self) -> None:
        self.head = layers()

    def run(self, x: Tensor, shift: Tensor = X[0]) -> Tensor:
        y: Tensor = self.head(x)
        return y + shift

    __call__ = run


def described(program: Program) -> tuple[set[str], set[str]]:
    """The names of a program's inputs, and the modules that its tasks are in."""
    modules = {task.source.module for task in program.graph.tasks if task.source is not None}
    return {each.name for each in program.graph.inputs}, modules


def ahead_of_time(function: Callable[..., Any], *args: Any) -> tuple[set[str], set[str]]:
    (program,) = nimble_fx.compile(function, args).programs
    return described(program)


HEAD = {"head_0_weight", "head_0_bias"}


@pytest.mark.parametrize(
    ("function", "args", "inputs", "modules"),
    [
        (of_free_variables(), (X,), {*HEAD, "x", "weights_0"}, {"head", ""}),
        (
            of_defaults(),
            (X,),
            {*HEAD, "encoder_0_weight", "encoder_0_bias", "x", "shift"},
            {"head", "encoder", ""},
        ),
        (of_globals, (X,), {"GLOBAL_0_weight", "GLOBAL_0_bias", "x"}, {"GLOBAL"}),
        (of_names_of_models, (X, X[0]), {"model", "fn"}, {""}),
        (decorated(), (X,), {*HEAD, "x", "weights_0"}, {"head", ""}),
        (
            functools.partial(of_modules, layers()),
            (X,),
            {"encoder_0_weight", "encoder_0_bias", "x"},
            {"encoder"},
        ),
        (of_modules, (layers(), X), {"encoder_0_weight", "encoder_0_bias", "x"}, {"encoder"}),
        (Model().run, (X,), {*HEAD, "x", "shift"}, {"head", ""}),
        (layers().forward, (X,), {"_0_weight", "_0_bias", "input"}, set()),
        (decorated_with_other_parameters(), (X[0], X), {"scale", "x"}, {""}),
        (of_models, (layers(), X), {"model_0_weight", "model_0_bias", "x"}, {"model"}),
        (torch.fx.symbolic_trace(layers()), (X,), {"_0_weight", "_0_bias", "input"}, set()),
        (wraps_a_partial(), (X[1], X[0]), {"x", "args_0", "args_1"}, {""}),
        (functools.partial(of_any, shift=X[0]), (X, X[1]), {"x", "rest_0", "shift"}, {""}),
        (TakesTwo(nn.Linear(4, 4)), (X, X[0]), {"_0_weight", "_0_bias", "y", "scale"}, {""}),
    ],
    ids=[
        "free",
        "defaults",
        "globals",
        "models",
        "decorated",
        "partial",
        "arguments",
        "method",
        "forward",
        "other parameters",
        "model",
        "graph module",
        "partial of some, wrapped",
        "partial of a keyword",
        "call",
    ],
)
def test_names_are_those_of_variables(
    function: Callable[..., Any], args: tuple[Any, ...], inputs: set[str], modules: set[str]
) -> None:
    assert ahead_of_time(function, *args) == (inputs, modules)


@pytest.mark.parametrize("function", [of_free_variables(), of_defaults(), Model().run])
def test_names_are_those_that_torch_compile_has(function: Callable[..., Any]) -> None:
    expected = ahead_of_time(function, X)
    with torch.no_grad():
        torch.compile(function, backend="nimble")(X)
    assert described(nimble_fx.programs()[-1]) == expected


def test_a_keyword_argument_has_its_name() -> None:
    def function(x: Tensor, **others: Any) -> Tensor:
        y: Tensor = others["encoder"](x) * others["scale"]
        return y

    keywords = {"encoder": layers(), "scale": X[0]}
    (program,) = nimble_fx.compile(function, X, example_kwargs=keywords).programs
    names, modules = described(program)
    assert names == {"encoder_0_weight", "encoder_0_bias", "x", "scale"}
    assert modules == {"encoder", ""}


def test_arguments_of_any_number_are_numbered() -> None:
    nets, keywords = (nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)), {"a 'b": X[0]}
    compiled = nimble_fx.compile(of_any_number, (X, *nets), example_kwargs=keywords)
    names, modules = described(compiled.programs[0])
    assert names == {"nets_0_weight", "nets_1_weight", "x", "a_b"}
    assert modules == {""}


def test_a_plan_has_these_names_too() -> None:
    program = nimble_fx.plan(of_modules, (layers(), X), device="h100")
    assert isinstance(program, Program)
    names, modules = described(program)
    assert names == {"encoder_0_weight", "encoder_0_bias", "x"}
    assert modules == {"encoder"}


CLOSURE = "L['model'].__closure__[0].cell_contents"


def test_functions_that_call_themselves_and_each_other_take_no_longer() -> None:
    """A function that is in its own closure is found as often as the source says."""

    def function(n: int) -> int:
        return n and function(n - 1)

    own = OwnSource(function)
    assert own("L['args'][0]") == "L['n']"
    assert own(CLOSURE + ".__closure__[0].cell_contents" * 999 + "[1]") == "L['function'][1]"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "L['args'][1]",
        "L['args'][0x]",
        "G['model'].weight",
        "L['model_2'].__defaults__[0]",
    ],
)
def test_what_is_no_variable_of_the_function_keeps_its_source(source: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x + X

    assert OwnSource(function)(source) == source
    assert OwnSource(torch.relu)(source) == source


@pytest.mark.parametrize(
    "rest", ["", ".__self__", ".weight", ".__closure__[0]", ".__defaults__[0].weight"]
)
def test_what_the_model_has_is_in_self(rest: str) -> None:
    assert OwnSource(torch.relu)(f"L['model']{rest}") == f"L['self']{rest}"


def test_a_partial_of_a_function_of_any_number_keeps_the_position() -> None:
    own = OwnSource(functools.partial(lambda x, *others: x + others[0], X, X))
    assert own("L['model'].args[0]") == "L['x']"
    assert own("L['model'].args[1]") == "L['self'].args[1]"
    assert own("L['model'].func.scale") == "L['self'].scale"
    assert own("L['args'][0]") == "L['args'][0]"


def test_an_item_of_an_object_is_no_item_of_its_method() -> None:
    class Layers(list[nn.Module]):
        def run(self, x: Tensor) -> Tensor:
            y: Tensor = self[1](x)
            return y

    own = OwnSource(Layers([nn.ReLU()]).run)
    assert own("L['model'].__self__.net[0]") == "L['self'].net[0]"
    assert own("L['model'].__self__[0].weight").endswith("[0].weight")


def test_gradients_are_of_the_variables_parameters() -> None:
    def loss(encoder: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = head(encoder(x))
        return y.square().sum()

    head = layers()
    _, backward = nimble_fx.compile(loss, (layers(), X), training=True).programs
    wanted = {"encoder.0.weight", "encoder.0.bias", "head.0.weight", "head.0.bias"}
    assert {f"gradient of {name}" for name in wanted} <= set(backward.graph.labels)


@pytest.mark.parametrize("is_argument", [False, True])
def test_a_plan_needs_the_shapes_of_lazy_modules(is_argument: bool) -> None:
    module = nn.LazyLinear(4)
    inputs = (module, X) if is_argument else X
    with pytest.raises(UnsupportedError, match="lazy: call the model once before"):
        nimble_fx.plan(of_modules if is_argument else module, inputs, device="h100")


def test_a_plan_of_a_function_that_takes_a_module_leaves_the_module_alone() -> None:
    module = layers()
    nimble_fx.plan(lambda net, x: net(x).sum(), (module, X), device="h100", training=True)
    assert {(each.device.type, each.grad) for each in module.parameters()} == {("cpu", None)}
