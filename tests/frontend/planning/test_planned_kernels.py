"""Plans with Inductor's kernels have the same inputs and outputs, and run nothing."""

from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import nimble_fx
from nimble_fx.devices.cuda import Cuda
from nimble_fx.errors import NimbleWarning, UnsupportedError
from nimble_fx.frontend.planning import planned_kernels
from nimble_fx.ir.types import TensorType
from nimble_fx.rewrites.inductor.inductor_kernels import with_inductor_kernels
from nimble_fx.rewrites.inductor.opaque_operators import CONCATENATIONS
from nimble_fx.torch_internals.operators import KERNELS
from tests.support.models import CASES, Branchy, GoogLeNet, Inception
from tests.support.snapshot import snapshot

needs_triton = pytest.mark.skipif(not find_spec("triton"), reason="needs Triton")


class Factories(nn.Module):
    """A constant, random numbers and views of what they go into."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        return (x + steps).relu().view(-1), steps[:3] * torch.rand(3, device=x.device)


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "Branchy": (Branchy(), (2, 4)),
    "GoogLeNet": (GoogLeNet(), (1, 3, 32, 32)),
    "Inception": (Inception(), (1, 8, 8, 8)),
    "Factories": (Factories(), (2, 5)),
}


def n_by_inductor(program: nimble_fx.Program) -> int:
    targets = [task.target for task in program.graph.launching]
    return sum(getattr(target, "namespace", "") == KERNELS for target in targets)


def interface(program: nimble_fx.Program) -> Any:
    """What a caller hands over and is returned, without names."""
    graph = program.graph
    types = graph.types
    returned = [types[each.name] for each in graph.outputs if hasattr(each, "name")]
    return [value.type for value in graph.inputs], returned


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_inductors_and_the_interface_and_the_model_as_they_were(name: str) -> None:
    model, shape = MODELS[name]
    x, before = torch.randn(shape), snapshot(model.eval(), ())
    by_pytorch = nimble_fx.plan(model, x)
    program = nimble_fx.plan(model, x, kernels="inductor", on_fallback="error")
    assert snapshot(model, ()) == before
    assert n_by_inductor(program) > 0
    assert len(program.graph.launching) <= len(by_pytorch.graph.launching)
    assert interface(program) == interface(by_pytorch)
    types = [value.type for value in program.graph.values]
    devices = {each.device for each in types if isinstance(each, TensorType)}
    assert devices == {torch.device("cuda", 0)}
    program.verify()
    nimble_fx.verify_source(program.source)


def n_joined(gm: GraphModule) -> float:
    return sum(node.target in CONCATENATIONS for node in gm.graph.nodes)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("name", ["googlenet", "tables"])
def test_what_is_joined_is_fused_or_not_by_which_is_predicted_to_be_shorter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = CASES[name].model().eval(), CASES[name].inputs()[0]
    own = nimble_fx.plan(model, x, kernels="inductor", on_fallback="error")
    makespans = list[float]()
    for prefer in (n_joined, lambda gm: -n_joined(gm)):
        forced = partial(lambda prefer, gm, _: with_inductor_kernels(gm, prefer), prefer)
        monkeypatch.setattr(planned_kernels, "with_inductor_kernels", forced)
        program = nimble_fx.plan(model, x, kernels="inductor", on_fallback="error")
        makespans.append(program.candidates[0].predicted_us)
    assert makespans[0] != makespans[1]
    assert own.candidates[0].predicted_us == min(makespans)


@pytest.mark.gpu
@needs_triton
def test_a_training_is_planned_with_them_too() -> None:
    programs = nimble_fx.plan(
        Branchy(), torch.randn(2, 4), training=True, kernels="inductor", on_fallback="error"
    )
    for program in programs:
        assert n_by_inductor(program) > 0
        program.verify()


@pytest.mark.gpu
@needs_triton
def test_an_operator_that_has_no_results_on_a_gpu_is_named() -> None:
    with torch.library._scoped_library("nimble_planned", "FRAGMENT") as library:
        library.define("here(Tensor x) -> Tensor")

        def fake(x: Tensor) -> Tensor:
            if x.device.type == "cuda":
                raise ValueError("not there")
            return torch.empty_like(x)

        torch.library.register_fake("nimble_planned::here", fake, lib=library)

        def model(x: Tensor) -> Tensor:
            made: Tensor = torch.ops.nimble_planned.here(x.relu())
            return made

        with pytest.raises(UnsupportedError, match="do not run on cuda:0: not there"):
            nimble_fx.plan(model, torch.randn(3), kernels="inductor", on_fallback="error")


def test_without_a_gpu_the_plan_has_pytorchs_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cuda, "hardware", None)
    model, x = Branchy(), torch.randn(2, 4)
    with pytest.warns(NimbleWarning, match="a GPU that PyTorch sees, and it sees none"):
        program = nimble_fx.plan(model, x, device="h100", kernels="inductor")
    assert n_by_inductor(program) == 0
    with pytest.raises(UnsupportedError, match="it sees none"):
        nimble_fx.plan(model, x, device="h100", kernels="inductor", on_fallback="error")


@pytest.mark.filterwarnings("ignore::nimble_fx.NimbleWarning")
def test_there_are_no_values_to_compare() -> None:
    for kernels in ("aten", "inductor"):
        program = nimble_fx.plan(Branchy(), torch.randn(2, 4), kernels=kernels, verify="values")
        assert program.graph.launching


def test_auto_would_have_to_time_what_is_not_here() -> None:
    with pytest.warns(NimbleWarning, match="a plan times nothing; ask for kernels='inductor'"):
        program = nimble_fx.plan(Branchy(), torch.randn(2, 4), kernels="auto")
    assert n_by_inductor(program) == 0
