"""Tasks with one signature take the same time; all that affects a kernel's time is in it."""

from typing import Any

import pytest
import torch

from nimble_fx.cost.signature import signature
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import concrete
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType, TupleType
from tests.support.cost_graphs import aten, one_task, tensor_type, traced
from tests.support.models import Branchy

X = tensor_type(2, 3)


def of(graph: TaskGraph, **sizes: int) -> str:
    return signature(graph.tasks[-1], concrete(graph, sizes).types, {})


def test_it_reads_as_a_call() -> None:
    graph = one_task(aten.add.Tensor, X, X, tensor_type(3))
    text = signature(graph.tasks[0], graph.types, {"x1": 4096})
    assert text == "aten.add.Tensor(f32[2, 3]{3, 1}, f32[3]{1} cold 4096)"


OTHERS: list[tuple[Any, ...]] = [
    (aten.sub.Tensor, X, 1),
    (aten.add.Tensor, tensor_type(3, 2), 1),
    (aten.add.Tensor, tensor_type(2, 3, dtype=torch.float16), 1),
    (aten.add.Tensor, TensorType((2, 3), (1, 2), torch.float32, torch.device("cpu")), 1),
    (aten.add.Tensor, X, 2),
    (aten.add.Tensor, X, 1.0),
    (aten.add.Tensor, X, True),
    (aten.add.Tensor, X, X),
]


@pytest.mark.parametrize(("target", "args"), [(each[0], each[1:]) for each in OTHERS])
def test_another_call_has_another_one(target: Any, args: tuple[Any, ...]) -> None:
    one, other = one_task(aten.add.Tensor, X, X, 1), one_task(target, X, *args)
    assert of(one) != of(other)


def test_names_and_places_make_no_difference() -> None:
    graph = traced(Branchy(), torch.randn(2, 4))
    types = graph.types
    by_name = {task.name: signature(task, types, {}) for task in graph.launching}
    assert by_name["mm"] == by_name["mm_1"]
    assert len(set(by_name.values())) == len(by_name) - 1


def test_symbolic_sizes_are_numbers() -> None:
    graph = one_task(aten.relu.default, None, tensor_type("s0*2", 3))
    assert of(graph, s0=1) == of(one_task(aten.relu.default, None, tensor_type(2, 3)))
    with pytest.raises(UnsupportedError):
        of(graph)


def test_numbers_tuples_and_nothing_have_a_form() -> None:
    graph = one_task(aten.cat.default, None, X, 0)
    types = {"x0": TupleType((X, ScalarType("7"), None))}
    text = signature(graph.tasks[0], types, {})
    assert text == "aten.cat.default((f32[2, 3]{3, 1}, 7, None), 0)"
