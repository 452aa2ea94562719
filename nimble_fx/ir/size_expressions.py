"""Size expressions as syntax trees, within limits for untrusted files."""

import ast

from nimble_fx.ir.locked_ast import syntax_tree

MAX_LENGTH = 2000
"""The characters of an expression, which bound its depth too."""


def parsed(text: str) -> ast.expr:
    """The syntax tree of an expression. It is not run, and may be from an untrusted file.

    Raises:
        ValueError: the text is too long, nested too deeply, or no expression.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has {len(text)} characters")
    try:
        body = syntax_tree(text).body
    except (MemoryError, RecursionError, SyntaxError) as error:  # MemoryError: nested too deeply
        raise ValueError(f"it cannot be parsed: {error}") from error
    match body:
        case [ast.Expr(value)]:
            return value
    raise ValueError("it is not an expression")
