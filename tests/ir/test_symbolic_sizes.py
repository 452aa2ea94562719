"""A size has the value that Python computes; any other text is refused, and not run."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.symbolic_sizes import concrete, number, numbers, symbols_of
from nimble_fx.ir.task_graph import Input, TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType, TupleType, Type

SYMBOLS = {"s0": 5, "s1": 12, "u2": 3}


def expressions() -> st.SearchStrategy[str]:
    """Sums, products and quotients of symbols, as PyTorch writes them."""
    atoms = st.sampled_from([*SYMBOLS, "1", "2", "7"])
    return st.recursive(
        atoms,
        lambda inner: (
            st.builds("({}{}{})".format, inner, st.sampled_from([" + ", " - ", "*", "//"]), inner)
            | st.builds("Max({}, {})".format, inner, inner)
        ),
        max_leaves=6,
    )


@given(expressions())
def test_an_expression_is_worth_what_python_says(expression: str) -> None:
    try:
        expected = eval(expression, {"Max": max}, SYMBOLS)
    except ZeroDivisionError:
        with pytest.raises(UnsupportedError):
            number(expression, SYMBOLS)
        return
    assert number(expression, SYMBOLS) == expected


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "square root": lambda n: torch.sym_int(torch.sym_sqrt(n)),
    "logarithm": lambda n: torch.sym_int(vars(torch)["_sym_log2"](torch.sym_float(n))),
    "rounded": lambda n: round(n * 0.5),
    "truncated": lambda n: math.trunc(n / 3),
    "ceiling": lambda n: math.ceil(n / 3),
    "power": lambda n: n**3,
    "modulus of a quotient": lambda n: (n // 3) % 4,
    "absolute": lambda n: abs(7 - n),
    "greatest": lambda n: torch.sym_max(n, 12),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("size", [2, 9, 16, 23])
def test_what_pytorch_prints_is_worth_what_it_computes(name: str, size: int) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    symbolic: Any = mode.from_tensor(torch.empty(37)).shape[0]
    expression = str(COMPUTED[name](symbolic).node.expr)
    (symbol,) = symbolic.node.expr.free_symbols
    assert str(symbol) in expression
    assert number(expression, {str(symbol): size}) == COMPUTED[name](size)


@pytest.mark.parametrize(
    "expression",
    [
        "s9",
        "s0 +",
        "",
        "s0; s1",
        "s0.real",
        "__import__('os').getcwd()",
        "s0 ** 99",
        "'s0'",
        "1e999",
    ],
)
def test_what_is_no_size_is_refused(expression: str) -> None:
    with pytest.raises(UnsupportedError, match="is not known"):
        number(expression, {"s0": 5})


def kind(*shape: int | str) -> TensorType:
    return TensorType(shape, shape, torch.float32, torch.device("cpu"))


def graph_of(*types: Type) -> TaskGraph:
    given = tuple(Input(f"x{i}", each) for i, each in enumerate(types))
    return TaskGraph("sizes", given, (), (), ())


def test_a_graph_has_numbers_for_symbols_in_shapes_strides_and_tuples() -> None:
    symbolic = graph_of(kind("s0", 2), TupleType((kind("s0*2"), None)))
    expected = graph_of(kind(5, 2), TupleType((kind(10), None)))
    assert concrete(symbolic, SYMBOLS) == expected


def test_a_graph_without_symbols_is_itself() -> None:
    graph = graph_of(kind(3, 2), TupleType((kind(1),)))
    assert concrete(graph, {}) is graph


def test_a_number_that_depends_on_more_than_sizes_stays_as_it_is() -> None:
    graph = graph_of(ScalarType("s0 + 1"), ScalarType("u0"), ScalarType("Eq(s0, 3)"))
    expected = graph_of(ScalarType("6"), ScalarType("u0"), ScalarType("Eq(s0, 3)"))
    assert concrete(graph, SYMBOLS) == expected


def test_sizes_of_a_graph_without_symbols_are_numbers() -> None:
    assert numbers((3, 2)) == [3, 2]
    with pytest.raises(UnsupportedError, match="s0 has no value"):
        numbers((3, "s0"))


def test_symbols_are_the_names_that_are_no_functions() -> None:
    of = TensorType(("s0", "4*s1 + 2"), ("FloorDiv(u0, 2)", 1), torch.int8, torch.device("cpu"))
    kind = TupleType((of, ScalarType("Eq(s3, 2)"), ScalarType("True"), ScalarType("7"), None))
    inputs = (Input("x", kind, ("x",)), Input("n", ScalarType("Max(1, s77)"), ()))
    assert symbols_of(TaskGraph("g", inputs, (), (), ())) == {"s0", "s1", "u0", "s3", "s77"}
