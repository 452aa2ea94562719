"""Each task has the line of the user's code, and the module, that it comes from."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import nimble_fx
from nimble_fx.ir.task_graph import Source, Task
from nimble_fx.program import Program
from nimble_fx.torch_internals.names import OpOverload

PLAIN: dict[str, Any] = {
    "kernels": "aten", "fold_weights": False, "policy": "serial", "device": "virtual",
}  # fmt: skip


class Scale(nn.Module):
    """A user's module that calls no others."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by + 1


class Sum(nn.Module):
    """A user's module that calls others."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


class Model(nn.Module):
    """Calls a container."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * 2


def bodies() -> st.SearchStrategy[nn.Module]:
    layers = st.builds(lambda: nn.Conv2d(2, 2, 1)) | st.builds(Scale)
    return st.recursive(
        layers,
        lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
            lambda parts: st.sampled_from([nn.Sequential(*parts), Sum(*parts)])
        ),
        max_leaves=6,
    )


class CallingModules(TorchDispatchMode):
    """Records the innermost module, convolutions left out, in which eager calls each operator."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self._inside: list[str] = []
        for path, module in model.named_modules():
            if not isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(lambda *_, path=path: self._inside.append(path))
                module.register_forward_hook(lambda *_: self._inside.pop() and None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func.overloadpacket.__name__, self._inside[-1]))
        return func(*args, **(kwargs or {}))


def operator_of(task: Task) -> str:
    assert isinstance(task.target, OpOverload)
    return task.target.overloadpacket.__name__.removesuffix("_")


def module_of(task: Task) -> str:
    assert task.source is not None
    return task.source.module


@settings(max_examples=15, deadline=None)
@given(bodies())
def test_a_task_has_the_module_in_which_eager_calls_its_operator(body: nn.Module) -> None:
    model, x = Model(body), torch.randn(1, 2, 3, 3)
    observed = copy.deepcopy(model)
    with torch.no_grad(), CallingModules(observed) as eager:
        observed(x)
    graph = nimble_fx.compile(model, x, **PLAIN).programs[0].graph
    tasks = sorted(graph.launching, key=lambda task: task.index)
    assert [(operator_of(task), module_of(task)) for task in tasks] == eager.calls


def sources_of(program: Program) -> list[Source | None]:
    return [task.source for task in program.graph.launching]


def test_an_exported_program_has_the_lines_and_modules_of_its_model() -> None:
    model, x = Model(nn.Sequential(Sum(Scale(), nn.Conv2d(2, 2, 1)))), torch.randn(1, 2, 3, 3)
    exported = torch.export.export(model, (x,))
    ours, theirs = (nimble_fx.compile(each, x, **PLAIN).programs[0] for each in (exported, model))
    assert sources_of(ours) == sources_of(theirs)


ENCODER, DECODER = Sum(Scale()), Sum(Scale())


def uses_globals(x: Tensor) -> Tensor:
    return DECODER(ENCODER(x))


def uses_arguments(encoder: nn.Module, decoder: Sum, x: Tensor) -> Tensor:
    for part in decoder.parts:
        x = x + part(x)
    return x + encoder(x)


def uses_its_closure() -> Callable[[Tensor], Tensor]:
    encoder, decoder = ENCODER, DECODER
    return lambda x: decoder(encoder(x))


@pytest.mark.parametrize(
    ("function", "arguments", "modules"),
    [
        (uses_globals, (), {"ENCODER", "ENCODER.parts.0", "DECODER", "DECODER.parts.0"}),
        (uses_its_closure(), (), {"encoder", "encoder.parts.0", "decoder", "decoder.parts.0"}),
        (uses_arguments, (ENCODER, DECODER), {"", "encoder", "encoder.parts.0", "decoder.parts.0"}),
        (nn.Sequential(ENCODER, DECODER), (), {"0", "0.parts.0", "1", "1.parts.0"}),
    ],
    ids=["globals", "closure", "arguments", "container"],
)
def test_a_module_has_the_name_by_which_a_function_calls_it(
    function: Callable[..., Tensor], arguments: tuple[nn.Module, ...], modules: set[str]
) -> None:
    torch.compile(function, backend="nimble", options=PLAIN)(*arguments, torch.ones(2))
    found = sources_of(nimble_fx.programs()[-1])
    assert {source.module for source in found if source} == modules


class Normalized(nn.Module):
    """Updates buffers, and uses a value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        return left + self.norm(x)


@pytest.mark.parametrize("training", [False, True])
def test_updates_of_buffers_have_the_line_and_module_that_compute_them(training: bool) -> None:
    model = Model(nn.Sequential(nn.Conv2d(2, 2, 1), Normalized()))
    x = torch.randn(2, 2, 3, 3)
    program = nimble_fx.compile(model, x, training=training, **PLAIN).programs[0]
    found = {
        str(task.args[0].name): task.source
        for task in program.graph.launching
        if "running" in getattr(task.args[0], "name", "") and "copy" in operator_of(task)
    }
    assert len(found) == 4
    for name, source in found.items():
        assert source is not None
        is_left = "left" in name
        assert source.module == ("body.1.left" if is_left else "body.1"), name
        assert source.code.startswith("left = " if is_left else "return left"), name


class Remembering(nn.Module):
    """Keeps a value that an earlier line computes."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        self.last.copy_(y)
        return y * 2


def test_an_update_on_a_line_of_its_own_has_that_line() -> None:
    program = nimble_fx.compile(Remembering(), torch.ones(2), **PLAIN).programs[0]
    (update,) = [task for task in program.graph.launching if operator_of(task) == "copy"]
    assert update.source is not None
    assert update.source.code == "self.last.copy_(y)"


def test_sums_of_gradients_have_the_line_and_module_of_a_term() -> None:
    model, x = Model(Normalized()), torch.randn(2, 2, 3, 3, requires_grad=True)
    backward = nimble_fx.compile(model, x, training=True, **PLAIN).programs[1]
    (added,) = [task for task in backward.graph.launching if operator_of(task) == "add"]
    assert module_of(added) in ("body", "body.left")


def test_what_pytorchs_transformer_adds_has_the_layer_that_adds_it() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = Model(layers).requires_grad_(False).train()
    graph = nimble_fx.compile(model, torch.randn(3, 1, 4), **PLAIN).programs[0].graph
    sums = [task for task in graph.launching if operator_of(task) == "add"]
    both = {"body.layers.0", "body.layers.1"}
    assert {module_of(task) for task in sums} == both
    assert {module_of(task) for task in graph.launching} == both | {""}


def test_a_fused_kernel_has_the_lines_of_all_modules_that_it_computes() -> None:
    model, x = Model(nn.Sequential(Sum(Scale()), Sum(Scale()))), torch.randn(2, 2)
    program = nimble_fx.compile(model, x, kernels="inductor", device="virtual").programs[0]
    (task,) = program.graph.launching
    assert {source.module for source in (*task.fused, task.source) if source} == {
        "", "body.0", "body.0.parts.0", "body.1", "body.1.parts.0",
    }  # fmt: skip
    assert len(set(task.fused)) == len(task.fused) == 4


def test_a_program_file_has_the_modules(tmp_path: Path) -> None:
    program = nimble_fx.compile(Model(Sum(Scale())), torch.ones(2), **PLAIN).programs[0]
    program.save(tmp_path / "program")
    assert nimble_fx.load(tmp_path / "program").graph == program.graph


class Residual(nn.Module):
    """Each operator is on a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        z = self.norm(y)
        z = z + x
        return torch.relu(z)


LINES = ["y = self.convolution(x)", "z = self.norm(y)", "z = z + x", "return torch.relu(z)"]


def codes_of(task: Task) -> list[str]:
    return [source.code for source in (*task.fused, task.source) if source]


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_a_folded_kernel_has_the_lines_of_all_operators_that_it_computes(device: str) -> None:
    model, x = Residual().eval(), torch.randn(1, 8, 16, 16)
    options: dict[str, Any] = {"fold_weights": True, "kernels": "aten", "assume_finite": True}
    if device == "cpu":
        graph = nimble_fx.compile(model, x, **options).programs[0].graph
    else:
        graph = nimble_fx.plan(model, x, device=device, **options).graph
    (kernel,) = [task for task in graph.launching if "convolution" in str(task.target)]
    assert codes_of(kernel) == LINES


def test_a_merged_product_has_the_lines_of_all_products() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(512, 512)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            first = self.layer(x)
            second = self.layer(y)
            return first + second

    inputs = torch.randn(1, 512), torch.randn(2, 512)[:1]
    options: dict[str, Any] = {"fold_weights": True, "kernels": "aten"}
    graph = nimble_fx.compile(Twice(), inputs, **options).programs[0].graph
    (kernel,) = [task for task in graph.launching if "linear" in str(task.target)]
    assert codes_of(kernel) == ["first = self.layer(x)", "second = self.layer(y)"]


def test_a_product_with_relu_has_both_lines() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return torch.relu(y)

    model = Layer().requires_grad_(False)
    graph = nimble_fx.plan(model, torch.randn(8, 64), device="h100", assume_finite=True).graph
    (kernel,) = graph.launching
    assert codes_of(kernel) == ["y = self.layer(x)", "return torch.relu(y)"]


@pytest.mark.parametrize("keys", [["k-1", "k-2", "k"], ["conv 1", "conv/2", "m²"]])
def test_modules_with_unusual_keys_are_told_apart(keys: list[str]) -> None:
    parts = nn.Sequential(OrderedDict((key, Scale()) for key in keys))
    program = nimble_fx.compile(Model(parts), torch.ones(2), **PLAIN).programs[0]
    expected = {"", *(f"body.{key}" for key in keys)}
    assert {module_of(task) for task in program.graph.launching} == expected


def test_a_module_is_named_by_its_key_without_control_characters() -> None:
    model = Model(nn.Sequential())
    model.body.add_module("a\x1b[31m 'b'", Scale())
    program = nimble_fx.compile(model, torch.ones(2), **PLAIN).programs[0]
    modules = {module_of(task) for task in program.graph.launching}
    assert modules == {"", "body.a\N{REPLACEMENT CHARACTER}[31m 'b'"}


@pytest.mark.parametrize("name", ["model.py", "m\x1b[31m.py", "m\udcff.py"])
def test_a_line_and_its_file_have_no_control_characters(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("def f(x):\n    return x.sin()  # \x1b[31m\u2028\x00".replace("\x00", ""))
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    program = nimble_fx.compile(scope["f"], torch.ones(3)).programs[0]
    (source,) = {task.source for task in program.graph.tasks}
    assert source is not None
    assert source.code.startswith("return x.sin()  # \N{REPLACEMENT CHARACTER}[31m")
    shown = name.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert Path(source.file).name == shown.replace("\udcff", "\N{REPLACEMENT CHARACTER}")
    program.save(tmp_path / "program")
    assert nimble_fx.load(tmp_path / "program").graph == program.graph
