"""Random programs run, vary, and shrink to what fails."""

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, find, given, settings
from torch import Tensor

from tests.grammar import OPERATORS, AtenProgram
from tests.strategies import aten_programs

pytestmark = pytest.mark.slow


@given(aten_programs())
def test_programs_run_in_eager_and_return_what_they_name(program: AtenProgram) -> None:
    inputs = program.example_inputs()
    results = program.function()(*inputs)
    assert len(results) == len(program.returns)
    for name, result in zip(program.returns, results, strict=True):
        assert isinstance(result, Tensor) if isinstance(name, str) else result == name


def test_programs_are_long_mutate_their_inputs_and_return_them_and_seldom_hold_a_nan() -> None:
    seen: Counter[str] = Counter()
    operators: set[str] = set()

    @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
    @given(aten_programs())
    def look(program: AtenProgram) -> None:
        inputs = program.example_inputs()
        versions = [x._version for x in inputs]
        results = program.function()(*inputs)
        tensors = [x for x in results if isinstance(x, Tensor)]
        operators.update(program.operators())
        seen["programs"] += 1
        seen["long"] += len(program.lines) >= 8
        seen["inputs mutated"] += versions != [x._version for x in inputs]
        seen["inputs returned"] += any(x is y for x in tensors for y in inputs)
        seen["results twice"] += len({*program.returns}) < len(program.returns)
        seen["no tensor"] += len(tensors) < len(results)
        seen["not finite"] += not all(x.isfinite().all() for x in tensors)

    look()
    assert seen.pop("not finite") < seen["programs"] / 10
    assert min(seen.values()) > seen["programs"] / 20, seen
    assert len(operators) > len(OPERATORS) / 2


def test_a_program_that_fails_shrinks_to_the_few_statements_that_matter() -> None:
    def writes_a_result_and_reads_it_again(program: AtenProgram) -> bool:
        return bool(re.search(r"_\.\w+\((t\d+)\b.*\n(.*\n)*.*\b\1\b", "\n".join(program.lines)))

    fresh = settings(max_examples=5000, database=None)
    program = find(aten_programs(max_steps=8), writes_a_result_and_reads_it_again, settings=fresh)
    assert len(program.lines) <= 5, str(program)
    assert len(program.returns) <= 1
