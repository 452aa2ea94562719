"""Sizes as polynomials of their symbols, by which two expressions are seen to be equal."""

import ast
from collections import Counter

from nimble_fx.ir.locked_ast import syntax_tree
from nimble_fx.ir.types import Size

_MAX_TERMS, _MAX_POWER = 4096, 32
"""A product of more terms, or a greater power, is one term with its text for a symbol."""

_Polynomial = Counter[tuple[str, ...]]
"""The coefficient of each product of symbols, which are in the order of their names."""


def are_equal(one: Size, other: Size) -> bool:
    """Whether two sizes are equal for all values of their symbols.

    What is no sum or product counts as a symbol by its text: so False says nothing where there are
    divisions, maxima and the like.
    """
    return _terms(one) == _terms(other)


def _terms(size: Size) -> _Polynomial:
    """The polynomial of a size, without terms of coefficient 0; one term if it cannot be parsed."""
    alone: _Polynomial = Counter({(str(size),): 1})
    try:
        parsed = syntax_tree(str(size)).body
    except (MemoryError, RecursionError, SyntaxError, ValueError):  # as an untrusted file may have
        return alone
    match parsed:
        case [ast.Expr(value)]:
            return _without_zeros(_polynomial(value))
    return alone


def _polynomial(node: ast.expr) -> _Polynomial:
    match node:
        case ast.Constant(int() as value):
            return Counter({(): value})
        case ast.UnaryOp(ast.USub(), operand):
            return _product(Counter({(): -1}), _polynomial(operand))
        case ast.BinOp(left, ast.Add(), right):
            return _sum(_polynomial(left), _polynomial(right))
        case ast.BinOp(left, ast.Sub(), right):
            return _sum(_polynomial(left), _polynomial(ast.UnaryOp(ast.USub(), right)))
        case ast.BinOp(left, ast.Mult(), right):
            one, other = _polynomial(left), _polynomial(right)
            if len(one) * len(other) <= _MAX_TERMS:
                return _product(one, other)
        case ast.BinOp(base, ast.Pow(), ast.Constant(int() as n)) if 1 <= n <= _MAX_POWER:
            rest = ast.BinOp(base, ast.Pow(), ast.Constant(n - 1))
            return _polynomial(ast.BinOp(base, ast.Mult(), rest) if n > 1 else base)
    return Counter({(ast.unparse(node),): 1})


def _sum(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    total = Counter(one)
    total.update(other)
    return total


def _product(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    total = _Polynomial()
    for a, n in one.items():
        for b, m in other.items():
            total[tuple(sorted((*a, *b)))] += n * m
    return total


def _without_zeros(polynomial: _Polynomial) -> _Polynomial:
    return Counter({term: n for term, n in polynomial.items() if n})
