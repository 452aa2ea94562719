"""Errors of planning say what failed, and where in the model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import OptionError, PassError, ScheduleError, UnsupportedError
from tests.support.models import Branchy


class Broken(nn.Module):
    """A graph break."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()  # here
        return y.cos()


class Branches(nn.Module):
    """Control flow that depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            return x + 1
        return x - 1


class Elsewhere(nn.Module):
    """A tensor of the CPU's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(3, device="cpu")  # here


class Conditional(nn.Module):
    """A higher-order operator."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))  # here


@pytest.mark.parametrize("model", [Broken(), Branches(), Elsewhere(), Conditional()])
def test_what_cannot_be_planned_says_where(model: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)# here"):
        nimble_fx.plan(model, torch.ones(3))


def test_what_launches_nothing_says_so() -> None:
    with pytest.raises(UnsupportedError, match="nothing to schedule"):
        nimble_fx.plan(lambda x: 3, torch.ones(3))
    with pytest.raises(UnsupportedError, match="its backward launches nothing"):
        nimble_fx.plan(lambda x: x.view(-1), torch.ones(3, requires_grad=True), training=True)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.ones(2, 4), r"\[2, 4\] X \[3, 3\]"),
        ((torch.ones(2, 3), 3), "TypeError: .* takes 2 positional arguments"),
        ((), "TypeError: .* missing 1 required"),
    ],
)
def test_inputs_that_the_model_does_not_take_are_said_to_be_so(inputs: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"Linear, called as it is .* raises .*{message}"):
        nimble_fx.plan(nn.Linear(3, 3), inputs)


@pytest.mark.parametrize("needs_data", [torch.unique, torch.bincount, Tensor.tolist])
def test_what_depend_on_data_are_not_the_inputs_fault(
    needs_data: Callable[[Tensor], Any],
) -> None:
    def program(x: Tensor) -> Any:
        return needs_data(x)  # here

    with pytest.raises(
        UnsupportedError, match=r"cannot be planned: .* depends on data, .*# here\]$"
    ):
        nimble_fx.plan(program, torch.arange(4))


def test_the_error_for_a_function_that_uses_a_module_from_outside_says_what_to_do() -> None:
    outside = nn.Linear(4, 4)

    def program(x: Tensor) -> Tensor:
        return torch.relu(outside(x))

    with pytest.raises(UnsupportedError, match=r"program uses 2 tensors of its closure.*Make it a"):
        nimble_fx.plan(program, torch.ones(2, 4))
    nimble_fx.plan(outside, torch.ones(2, 4))


def test_a_bug_in_a_model_is_shown_with_its_line() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x  # here

    with pytest.raises(OptionError, match=rf"\[{__file__}:\d+: return x @ x  # here\]"):
        nimble_fx.plan(Wrong(), torch.ones(2, 4))


@dataclass(frozen=True)
class Raises:
    """A policy that has a bug."""

    name = "raises"

    def __call__(self, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        raise KeyError(graph.name)


def test_what_a_policy_raises_names_it() -> None:
    with pytest.raises(PassError, match=r"pass 'raises' raised KeyError: 'Branchy.forward' \["):
        nimble_fx.plan(Branchy(), torch.ones(2, 4), policy=Raises())
    compiled = torch.compile(Branchy(), backend="nimble", options={"policy": Raises()})
    with pytest.raises(RuntimeError, match="pass 'raises' raised KeyError"):
        compiled(torch.ones(2, 4))


def test_training_is_yes_or_no() -> None:
    with pytest.raises(OptionError, match="training='yes' is not valid"):
        nimble_fx.plan(Branchy(), torch.ones(2, 4), training="yes")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="training=1 is not valid"):
        nimble_fx.compile(Branchy(), torch.ones(2, 4), training=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [False, True])
def test_a_tensor_that_is_made_on_the_cpu_is_unsupported(training: bool) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(10, 4))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.embedding(torch.tensor([0, 3]), self.weight) + x

    arguments: dict[str, Any] = {"training": training}
    with pytest.raises(UnsupportedError, match=r"meta(,| and) cpu"):
        nimble_fx.plan(Table(), torch.zeros(2, 4), **arguments)


def test_a_plan_refuses_measured_costs_and_makes_no_directory(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cost_dir=.* has no effect on a plan"):
        nimble_fx.plan(Branchy(), torch.ones(2, 4), cost_dir=tmp_path / "costs")
    assert [*tmp_path.iterdir()] == []


def test_what_cannot_be_planned_in_the_backward_alone_says_so() -> None:
    class Hides(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return torch.cond(gradient.sum() > 0, torch.cos, torch.sin, (gradient,))

    def program(x: Tensor) -> Tensor:
        result: Tensor = Hides.apply(x)
        return result

    x = torch.ones(3, requires_grad=True)
    nimble_fx.plan(program, x)
    with pytest.raises(UnsupportedError, match=r"cannot be planned: cond is a higher-order op"):
        nimble_fx.plan(program, x, training=True)


def test_a_plan_that_is_not_legal_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: nimble_fx.TaskGraph, traced: nimble_fx.TaskGraph) -> None:
        raise ScheduleError("race")

    monkeypatch.setattr("nimble_fx.selection.select.verify", refuse)
    with pytest.raises(UnsupportedError, match=r"Branchy.forward has no legal.*report it: race"):
        nimble_fx.plan(Branchy(), torch.ones(2, 4))
