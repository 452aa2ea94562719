"""Graphs have the kinds of kernels that the options ask for, and custom operators are not timed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import nimble_fx
from nimble_fx.devices.specs import Device, find_device
from nimble_fx.errors import ScheduleError, UnsupportedError
from nimble_fx.kernel_kinds import FOLDED, INDUCTORS, PYTORCHS, KernelKinds
from nimble_fx.options import Options
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime
from nimble_fx.runtime.fastest import KernelChoice
from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from tests.support.inference_graphs import inference_graph


class Inductor(ThisMachine):
    """A target with a substitute for Inductor, which notes whether times are predicted for it."""

    def __init__(self, error: Exception | None = None, specs: Device | None = None) -> None:
        super().__init__(Options())
        self.error, self.specs, self.predicts = error, specs, list[bool]()

    def inductor_kernels(self, gm: GraphModule, predicted_us: PredictedTime | None) -> GraphModule:
        self.predicts.append(predicted_us is not None)
        if self.error is not None:
            raise self.error
        return gm


def kinds_of(inductor: Inductor, **options: Any) -> KernelKinds:
    return KernelKinds(Options(**options), inductor, lambda gm: 1.0)


def graph_of(model: nn.Module) -> GraphModule:
    return inference_graph(model, torch.randn(2, 4)).gm


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ("aten", [PYTORCHS]),
        ("inductor", [INDUCTORS]),
        ("auto", [PYTORCHS, INDUCTORS]),
    ],
)
def test_a_graph_has_the_kinds_that_the_options_ask_for(kernels: str, expected: list[str]) -> None:
    kinds = kinds_of(Inductor(), kernels=kernels)
    assert list(kinds.graphs(graph_of(nn.ReLU()), "p", KernelChoice())) == expected


@pytest.mark.parametrize("kernels", ["inductor", "auto"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnsupportedError("no compiler"), "no compiler"),
        (ScheduleError("a cycle"), "This is a bug in nimble_fx, please report it: a cycle"),
    ],
)
def test_without_inductors_kernels_it_has_pytorchs_and_the_user_is_warned(
    kernels: str, error: Exception, reason: str
) -> None:
    kinds, choice = kinds_of(Inductor(error), kernels=kernels), KernelChoice()
    with pytest.warns(nimble_fx.NimbleWarning, match=reason):
        assert list(kinds.graphs(graph_of(nn.ReLU()), "p", choice)) == [PYTORCHS]
    reasons = [fallback.reason for fallback in nimble_fx.fallbacks()]
    assert len(reasons) == (kernels == "inductor")
    assert len(choice.left_out) == (kernels == "auto")
    assert all(each.endswith(reason) for each in (*reasons, *choice.left_out.values()))


@pytest.mark.parametrize(
    ("options", "predicts"),
    [
        ({"policy": "nimble"}, True),
        ({"policy": "nimble", "max_streams": 1}, False),
        ({"policy": "serial"}, False),
        ({"policy": "auto"}, False),  # a CPU has one queue
    ],
)
def test_fusion_is_only_limited_if_there_may_be_several_streams(
    options: dict[str, Any], predicts: bool
) -> None:
    inductor = Inductor()
    kinds_of(inductor, kernels="inductor", **options).graphs(
        graph_of(nn.ReLU()), "p", KernelChoice()
    )
    assert inductor.predicts == [predicts]


@pytest.mark.parametrize(("max_streams", "predicts"), [(1, False), (8, True)])
def test_a_plan_has_the_streams_of_the_device_that_it_is_for(
    max_streams: int, predicts: bool
) -> None:
    inductor = Inductor(specs=replace(find_device("h100"), max_streams=max_streams))
    kinds = kinds_of(inductor, kernels="inductor", policy="auto")
    kinds.graphs(graph_of(nn.ReLU()), "p", KernelChoice())
    assert inductor.predicts == [predicts]


@torch.library.custom_op("test_kernel_kinds::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """An operator that may have undeclared effects."""
    return 2 * x


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Twice(nn.Module):
    """A model with a custom operator."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = twice(x)
        return result


@boxed
def refuses(args: list[Any]) -> Sequence[Any]:
    """A program that must not be called."""
    raise AssertionError


@boxed
def also_refuses(args: list[Any]) -> Sequence[Any]:
    """Another one."""
    raise AssertionError


@pytest.mark.parametrize(
    ("runs", "winner"),
    [
        ({PYTORCHS: refuses, INDUCTORS: also_refuses}, PYTORCHS),
        ({PYTORCHS: refuses, FOLDED: also_refuses}, FOLDED),
    ],
)
def test_programs_with_custom_operators_are_not_timed(runs: dict[str, Boxed], winner: str) -> None:
    kinds, choice = kinds_of(Inductor()), KernelChoice()
    assert kinds.fastest("p", runs, graph_of(Twice()), choice) is runs[winner]
    assert choice.winner == winner
    (left_out,) = choice.left_out.items()
    assert left_out[0] in runs.keys() - {winner}
    assert "custom operator" in left_out[1]


def test_one_kind_of_kernels_runs_without_being_timed() -> None:
    kinds, choice = kinds_of(Inductor()), KernelChoice()
    assert kinds.fastest("p", {PYTORCHS: refuses}, graph_of(nn.ReLU()), choice) is refuses
    assert choice.winner == PYTORCHS
