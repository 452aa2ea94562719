"""A text is parsed as Python parses it, or refused with a ValueError that says why."""

import ast

import pytest

from nimble_fx.ir.size_expressions import MAX_LENGTH, parsed


def test_an_expression_is_parsed_as_python_parses_it() -> None:
    text = "2*FloorDiv(s0, 3) - Max(1, s1)"
    assert ast.dump(parsed(text)) == ast.dump(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s0 +", "cannot be parsed"),
        ("9" * 1900 + "(" * 99, "cannot be parsed"),
        ("(" * 999 + "s0", "cannot be parsed"),
        ("~" * (MAX_LENGTH - 1) + "s0", "characters"),
        ("", "not an expression"),
        ("s0 = 1", "not an expression"),
        ("s0; s1", "not an expression"),
    ],
)
def test_other_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(text)
