"""The written inputs of a program are those that running it changes."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from nimble_fx.ir.written_inputs import written_inputs
from tests.support.schedules import traced
from tests.support.trials import Trial, trials


def of(function: object, *inputs: Tensor) -> set[str]:
    graph = traced(function, *inputs, functional=False).graph  # type: ignore[arg-type]
    names = [value.name for value in graph.inputs]
    return {"xyz"[names.index(name)] for name in written_inputs(graph)}


@given(trials(max_steps=8))
def test_what_changes_is_among_them(trial: Trial) -> None:
    graph, inputs = trial.schedule()[1], trial.program.example_inputs(trial.seed)
    before = [x.clone() for x in inputs]
    trial.program.function()(*inputs)
    changed = {
        value.name
        for value, x, old in zip(graph.inputs, inputs, before, strict=True)
        if not bool(((x == old) | ((x != x) & (old != old))).all())
    }
    assert changed <= written_inputs(graph)


def test_another_part_of_the_storage_is_not_among_them() -> None:
    flat = torch.zeros(4)
    assert of(lambda x, y: x.add_(y), flat[:2], flat[2:]) == {"x"}


@pytest.mark.parametrize(
    "view", [lambda x: x[0], lambda x: x.view(-1).unsqueeze(0).t(), lambda x: x.split(1)[1]]
)
def test_a_write_to_a_view_is_one_to_the_input(view: object) -> None:
    assert of(lambda x, y: view(x).zero_() + y[0], torch.ones(2, 2), torch.ones(2, 2)) == {"x"}  # type: ignore[operator]


def test_results_and_copies_are_not_inputs() -> None:
    assert of(lambda x, y: x.clone().add_(y).sum(), torch.ones(2), torch.ones(2)) == set()
    assert (
        of(lambda x, y: torch.add(x, y, out=torch.empty(2)), torch.ones(2), torch.ones(2)) == set()
    )
    assert of(lambda x, y: torch.add(x, x, out=y), torch.ones(2), torch.ones(2)) == {"y"}
