"""Sizes as polynomials of their symbols, by which two expressions are seen to be equal."""

import ast
from collections import Counter

from nimble_fx.ir.size_expressions import parsed
from nimble_fx.ir.types import Size

_MAX_TERMS, _MAX_DEGREE, _MAX_COEFFICIENT = 256, 32, 2**63
"""A product beyond one of these counts as a symbol, by its text."""

_Polynomial = Counter[tuple[str, ...]]
"""The coefficient of each product of symbols, which are in the order of their names."""


def are_equal(one: Size, other: Size) -> bool:
    """Whether two sizes are equal for all values of their symbols.

    What is no sum or product counts as a symbol by its text: so False says nothing where there are
    divisions, maxima and the like. Cost: bounded, whatever an untrusted file says.
    """
    return _terms(one) == _terms(other)


def _terms(size: Size) -> _Polynomial:
    """The polynomial of a size, without terms of coefficient 0; one term if it cannot be parsed."""
    try:
        polynomial = _polynomial(parsed(str(size)))
    except (RecursionError, ValueError):
        return Counter({(str(size),): 1})
    return Counter({term: n for term, n in polynomial.items() if n})


def _polynomial(node: ast.expr) -> _Polynomial:
    match node:
        case ast.Constant(int() as value):
            return Counter({(): value})
        case ast.UnaryOp(ast.USub(), operand):
            return _negative(_polynomial(operand))
        case ast.BinOp(left, ast.Add(), right):
            return _sum(_polynomial(left), _polynomial(right))
        case ast.BinOp(left, ast.Sub(), right):
            return _sum(_polynomial(left), _negative(_polynomial(right)))
        case ast.BinOp(left, ast.Mult(), right):
            return _product(node, [_polynomial(left), _polynomial(right)])
        case ast.BinOp(base, ast.Pow(), ast.Constant(int() as n)) if 1 <= n <= _MAX_DEGREE:
            return _product(node, [_polynomial(base)] * n)
    return _symbol(node)


def _symbol(node: ast.expr) -> _Polynomial:
    return Counter({(ast.unparse(node),): 1})


def _negative(of: _Polynomial) -> _Polynomial:
    return Counter({term: -n for term, n in of.items()})


def _sum(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    total = Counter(one)
    total.update(other)
    return total


def _product(node: ast.BinOp, factors: list[_Polynomial]) -> _Polynomial:
    """The product of polynomials; a symbol for the node if it would be too large."""
    product: _Polynomial = Counter({(): 1})
    for factor in factors:
        if len(product) * len(factor) > _MAX_TERMS:
            return _symbol(node)
        product = _multiplied(product, factor)
        if any(len(term) > _MAX_DEGREE or abs(n) > _MAX_COEFFICIENT for term, n in product.items()):
            return _symbol(node)
    return product


def _multiplied(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    product = _Polynomial()
    for a, n in one.items():
        for b, m in other.items():
            product[tuple(sorted((*a, *b)))] += n * m
    return product
