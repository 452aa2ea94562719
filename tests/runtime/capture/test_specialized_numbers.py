"""A capture depends on the numbers and sizes that its tasks see, and on no others."""

import copy
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nimble_fx
from nimble_fx.ir.task_graph import Input, Ref, TaskGraph
from nimble_fx.ir.types import ScalarType
from nimble_fx.runtime.capture.specialized_numbers import SpecializedNumbers
from tests.support.cost_graphs import tensor_type
from tests.support.eager import assert_same

OFFSETS = torch.tensor([0, 2, 5])


def jagged(n_rows: int, offsets: Tensor) -> Tensor:
    """Two sequences in so many rows, of which the last are padding."""
    made: Tensor = torch.nested.nested_tensor_from_jagged(torch.randn(n_rows, 4), offsets)
    return made


@given(st.lists(st.tuples(st.integers(5, 8), st.booleans()), min_size=1, max_size=8))
def test_nested_tensors_share_a_capture_if_their_values_have_one_shape(
    calls: list[tuple[int, bool]],
) -> None:
    torch.compiler.reset()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    options: dict[str, Any] = {"device": "virtual", "seed": 3}
    compiled = torch.compile(net, backend="nimble", dynamic=True, options=options)
    with torch.no_grad():
        compiled(jagged(9, OFFSETS))
        for n_rows, has_own_offsets in calls:
            x = jagged(n_rows, OFFSETS.clone() if has_own_offsets else OFFSETS)
            assert_same(compiled(x).values(), copy.deepcopy(net)(x).values())
    n_captures = sum(program.status.n_captures for program in nimble_fx.programs())
    assert n_captures == len({9} | {n_rows for n_rows, _ in calls})


def test_numbers_that_tasks_read_are_part_of_a_capture() -> None:
    def scaled(x: Tensor, by: float, n: int) -> Tensor:
        return x[:n] * by

    compiled = torch.compile(
        scaled, backend="nimble", dynamic=True, options={"device": "virtual", "seed": 3}
    )
    x = torch.randn(6, 4)
    with torch.no_grad():
        for by, n in ((2.0, 3), (3.0, 3), (3.0, 4), (2.0, 3)):
            assert_same(compiled(x, by, n), scaled(x, by, n))


def test_a_number_that_does_not_say_what_a_size_is_is_not_enough() -> None:
    x, n = Input("x", tensor_type("s0"), ("x",)), Input("n", ScalarType("s0//2"), ())
    numbers = SpecializedNumbers(TaskGraph("p", (x, n), (), (), (Ref("x"), Ref("n"))), [0, 1])
    assert numbers.of([torch.zeros(4), 2]) != numbers.of([torch.zeros(5), 2])
    assert numbers.of([torch.zeros(4), 2]) == numbers.of([torch.ones(4), 2])


def test_there_are_some_if_a_number_or_a_size_that_no_number_names_matters() -> None:
    x, n = Input("x", tensor_type("s0"), ("x",)), Input("n", ScalarType("s0"), ())
    fixed = Input("x", tensor_type(4), ("x",))
    for values, are_some in (((x,), True), ((x, n), True), ((fixed, n), False), ((fixed,), False)):
        outputs = tuple(Ref(value.name) for value in values[:1])
        graph = TaskGraph("p", values, (), (), outputs)
        assert bool(SpecializedNumbers(graph, range(len(values)))) == are_some
