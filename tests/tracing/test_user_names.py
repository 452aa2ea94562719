"""Names and lines are those of the user's code."""

import functools
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import FileError
from nimble_fx.ir.types import TensorType
from nimble_fx.tracing.user_names import InputNames, program_name


class Outer(nn.Module):
    """A module with a list inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, bias=False)])
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor, extra: list[Tensor]) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(y)
        self.scale: Tensor
        return y * self.scale + extra[0]


def inputs_of(gm: torch.fx.GraphModule) -> dict[str, str]:
    """The names of a graph's inputs, and the paths of parameters and buffers; "" for others."""
    for node in gm.graph.find_nodes(op="placeholder"):
        node.meta["val"] = node.meta["example_value"]  # as in the ATen graphs made of it
    inputs = InputNames(gm, str)
    inputs.match_inputs(gm, None)
    names = inputs.user_names(gm)
    paths = inputs.parameters(names)
    return {name: paths.get(name, "") for name in names.values()}


def names_of(model: nn.Module, *inputs: object) -> tuple[str, list[str]]:
    seen: list[tuple[str, list[str]]] = []

    def capture(gm: torch.fx.GraphModule, _: list[object]) -> object:
        seen.append((program_name(gm), list(inputs_of(gm))))
        return gm.forward

    torch.compile(model, backend=capture)(*inputs)
    return seen[0]


def test_inputs_are_named_by_their_place_in_the_model() -> None:
    name, inputs = names_of(Outer(), torch.ones(2), [torch.ones(2)])
    assert name == "Outer.forward"
    assert sorted(inputs) == [
        "extra_0", "layers_0_bias", "layers_0_weight", "layers_1_weight", "scale", "x",
    ]  # fmt: skip


def timed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(*args: Tensor) -> Tensor:
        return function(*args) + 1

    return wrapper


class Decorated(nn.Module):
    """A module whose forward is wrapped."""

    @timed
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def test_a_program_has_the_name_of_the_function_and_not_of_its_decorator() -> None:
    assert names_of(Decorated(), torch.ones(2))[0] == "Decorated.forward"


class Layers(nn.Sequential):
    """A container of a class of its own."""


class Doubled(nn.Sequential):
    """A container with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x) * 2
        return y


def forward(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return y


def test_a_file_that_python_cannot_parse_costs_only_the_name(tmp_path: Path) -> None:
    """A file that has changed since it was imported, or code that is executed under its name."""
    file, text = tmp_path / "changed.py", "def model(x):\n    return x * 2\n"
    scope: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), scope)
    for content in (f"{text}y = {'-' * 100_000}1\n", f"{text}\0\n", f"{text}y =\n"):
        torch.compiler.reset()
        linecache.clearcache()
        file.write_text(content)
        with torch.no_grad():
            torch.compile(scope["model"], backend="nimble")(torch.randn(2))
        assert nimble_fx.programs()[-1].name == "model"


@pytest.mark.parametrize("compiles", [names_of, lambda *args: ahead_of_time(*args)])
@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Sigmoid(), Decorated()), "Sequential"),
        (nn.Sequential(Decorated(), Decorated()), "Sequential"),
        (nn.Sequential(nn.Sequential(Decorated())), "Sequential"),
        (Layers(Decorated()), "Layers"),
        (Doubled(Decorated()), "Doubled"),
        (nn.Sigmoid(), "Sigmoid"),
    ],
)
def test_a_container_has_its_own_name_and_not_that_of_a_module_in_it(
    model: nn.Module, name: str, compiles: Callable[..., Any]
) -> None:
    assert compiles(model, torch.ones(2))[0] == f"{name}.forward"


def ahead_of_time(model: nn.Module, *inputs: object) -> list[str]:
    return [each.graph.name for each in nimble_fx.compile(model, inputs).programs]


def test_a_function_that_calls_a_container_has_its_own() -> None:
    assert names_of(forward, nn.Sequential(Decorated()), torch.ones(2))[0] == "forward"  # type: ignore[arg-type]


def paths_of(function: Callable[..., Any], *inputs: object) -> list[str]:
    seen: list[list[str]] = []

    def capture(gm: torch.fx.GraphModule, _: list[object]) -> object:
        seen.append(list(inputs_of(gm).values()))
        return gm.forward

    torch.compile(function, backend=capture)(*inputs)
    return seen[0]


def test_parameters_and_buffers_have_the_paths_that_the_module_gives_them() -> None:
    model = Outer()
    paths = paths_of(model, torch.ones(2), [torch.ones(2)])
    assert sorted(filter(None, paths)) == sorted(model.state_dict())
    assert paths.count("") == 2


def test_paths_have_the_keys_of_modules_whatever_their_characters() -> None:
    keys = ["x'y", 'x"y', "a[0]", "b\\c", "'", "]['", "m²"]
    model = nn.ModuleDict({key: nn.Linear(2, 2, bias=False) for key in keys})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers.values():
                x = layer(x)
            return x

    paths = paths_of(Model(), torch.ones(2))
    assert sorted(filter(None, paths)) == sorted(Model().state_dict())


def test_paths_in_two_modules_begin_with_the_modules_names() -> None:
    left, right = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)

    def both(x: Tensor) -> Tensor:
        return left(x) + right(x)

    names = ["left.bias", "left.weight", "right.weight"]
    assert sorted(paths_of(both, torch.ones(2))) == ["", *names]
    both_in_one = nn.ModuleDict({"left": left, "right": right})
    assert sorted(both_in_one.state_dict()) == names


class Counting(nn.Module):
    """Its forward sets an attribute, so that Dynamo reads it from the module's `__dict__`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.n = nn.Linear(2, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        y: Tensor = self.layer(x)
        return y


def test_modules_that_change_keep_their_paths() -> None:
    model = Counting()
    paths = paths_of(model, torch.ones(2))
    assert sorted(filter(None, paths)) == sorted(model.state_dict())


class OfNested(nn.Module):
    """Takes a nested tensor and a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, pieces: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(pieces), self.layer(x)


def test_tensors_of_a_subclass_have_its_name_and_weights_keep_theirs(tmp_path: Path) -> None:
    net, x = OfNested(), torch.randn(2, 4)
    pieces: Any = torch.nested.nested_tensor_from_jagged(torch.randn(5, 4), torch.tensor([0, 2, 5]))
    compiled = torch.compile(net, backend="nimble")
    with torch.no_grad():
        expected = compiled(pieces, x)
    (program,) = nimble_fx.programs()
    tensors = {"pieces_values": pieces.values(), "pieces_offsets": pieces.offsets(), "x": x}
    names = [each.name for each in program.graph.inputs if isinstance(each.type, TensorType)]
    assert names == ["layer_weight", "layer_bias", *tensors]
    results = program.bind(net)(2, *tensors.values())
    assert torch.equal(results[0], expected[0].values())
    if len(program.graph.inputs) > len(names) + 1:  # since PyTorch 2.14 the size is an input
        program.save(tmp_path / "nested.json")
        return
    with pytest.raises(FileError, match=r"size s\d+ of its input pieces_values is no input of"):
        program.save(tmp_path / "nested.json")
