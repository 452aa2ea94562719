"""Sizes count as equal if SymPy expands them to the same polynomial."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir.size_polynomials import are_equal

SYMBOLS = ("s0", "s17", "u3")

TEXTS = st.recursive(
    st.sampled_from(SYMBOLS) | st.integers(-9, 9).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda x: f"({x[0]}) {x[1]} ({x[2]})"),
        inner.map(lambda x: f"({x})**2"),
        inner.map(lambda x: f"-({x})"),
    ),
    max_leaves=8,
)


@given(TEXTS)
def test_a_size_is_equal_to_its_expansion(text: str) -> None:
    assert are_equal(text, str(sympy.sympify(text).expand()))


@given(TEXTS, TEXTS)
def test_sizes_are_equal_where_sympy_expands_them_to_the_same(one: str, other: str) -> None:
    is_equal = (sympy.sympify(one) - sympy.sympify(other)).expand() == 0
    assert are_equal(one, other) == is_equal


def test_what_is_no_polynomial_is_equal_to_itself_alone() -> None:
    assert are_equal("2*FloorDiv(s0, 2) + s0", "s0 + FloorDiv(s0, 2) + FloorDiv(s0, 2)")
    assert not are_equal("FloorDiv(s0, 2)*2", "s0")
    assert not are_equal("Max(1, s0)", "s0")


def test_numbers_are_sizes_too() -> None:
    assert are_equal(6, "2*3")
    assert are_equal("0*s0", 0)
    assert not are_equal(6, 7)


@pytest.mark.parametrize("text", ["s0 +", "", "s0; s1", f"{'-' * 9999}s0", f"{'(' * 999}s0"])
def test_what_is_no_expression_is_equal_to_itself_alone(text: str) -> None:
    assert are_equal(text, text)
    assert not are_equal(text, "s0")


def test_a_polynomial_that_would_be_too_long_is_not_multiplied_out() -> None:
    long = " + ".join(f"s{i}" for i in range(99))
    assert are_equal(f"({long})**2", f"({long})**2")
    assert not are_equal(f"({long})**2", f"({long})**3")


def nested_power(depth: int) -> str:
    return nested_power(depth - 1).join(("(s0 + ", ")**32")) if depth else "9"


@pytest.mark.parametrize(
    "text",
    [
        nested_power(40),
        f"{'(' * 100}9{')**32' * 100}",  # a number of more digits than fit in memory
        f"{'(' * 100}s0{')**32' * 100}",  # a term of more symbols than fit in memory
        "*".join(f"(s{i} + 1)" for i in range(99)),  # 2**99 terms
        "s0" + " + 1" * 5000,
        "-" * 1500 + "s0",
    ],
    ids=["powers", "digits", "symbols", "terms", "long", "deep"],
)
def test_any_text_is_compared_at_bounded_cost(text: str) -> None:
    assert are_equal(text, text)
    assert not are_equal(text, "s0 + 1")
