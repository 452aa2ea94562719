"""The grammar of random ATen programs: its kinds, its rows, and a program as text."""

from tests.grammar.computing import IMAGES, MATMUL, POINTWISE, REDUCTIONS
from tests.grammar.memory import CONSTANTS, IN_PLACE, INDEXING, RANDOM, SHAPES
from tests.grammar.mutating import MUTATING
from tests.grammar.production import Operand, Production
from tests.grammar.program import AtenProgram, Returned

__all__ = [
    "IN_PLACE",
    "MUTATING",
    "OPERATORS",
    "PRODUCTIONS",
    "RANDOM",
    "SHAPES",
    "AtenProgram",
    "Operand",
    "Production",
    "Returned",
]

PRODUCTIONS = (
    *POINTWISE,
    *REDUCTIONS,
    *MATMUL,
    *IMAGES,
    *SHAPES,
    *INDEXING,
    *IN_PLACE,
    *RANDOM,
    *CONSTANTS,
)
OPERATORS = frozenset(name for production in PRODUCTIONS for name in production.operators)
