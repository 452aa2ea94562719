"""Schedules of real models: inference, forward and backward, by each policy."""

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import nimble_fx
from nimble_fx.ir.dependencies import hazards
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import NamedPolicy
from tests.support.models import CASES
from tests.support.schedules import scheduled

INFERRED = ("branchy", "recurrent", "cache", "views", "tables", "mutates")
TRAINED = ("googlenet", "dropout")
POLICIES: tuple[tuple[NamedPolicy, int | None], ...] = (
    ("nimble", None),
    ("nimble", 2),
    ("serial", None),
)


@cache
def schedules_of_models() -> tuple[TaskGraph, ...]:
    """Each graph of each model, by each policy that makes a difference."""
    graphs = [graph for name in (*INFERRED, *TRAINED) for graph in _compiled(name)]
    found: list[TaskGraph] = []
    for graph in graphs:
        for policy, max_streams in POLICIES:
            candidate = _rescheduled(graph, policy, max_streams)
            if all(candidate.tasks != other.tasks for other in found):
                found.append(candidate)
    return tuple(found)


def _compiled(name: str) -> list[TaskGraph]:
    """The graph of a model's inference, or those of a training step."""
    case = CASES[name]
    known = len(nimble_fx.programs())
    if name in TRAINED:
        outputs = _call(case.model().train(), case.inputs())
        sum(leaf.sum() for leaf in pytree.tree_leaves(outputs)).backward()
    else:
        with torch.no_grad():
            _call(case.model().eval(), case.inputs())
    return [program.graph for program in nimble_fx.programs()[known:]]


def _call(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.compile(model, backend="nimble")(*inputs)


def _rescheduled(graph: TaskGraph, policy: NamedPolicy, max_streams: int | None) -> TaskGraph:
    """The passes once more, from the program's order and its hazards alone."""
    tasks = sorted(graph.tasks, key=lambda task: task.index)
    after = hazards(task for task in tasks if task.launches)
    traced = graph.replace_tasks(t.updated(after=after.get(t.name, ())) for t in tasks)
    return scheduled(traced, policy, max_streams)
