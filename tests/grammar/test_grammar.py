"""The rows hold what they say, and programs are text that runs."""

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.grammar import MUTATING, OPERATORS, PRODUCTIONS, AtenProgram, Production
from tests.grammar.kinds import KINDS
from tests.support.bits import assert_same_bits, layout
from tests.support.schedules import traced

ADDS = AtenProgram((("m0", "m"),), ("t0 = aten.add_.Tensor(m0, m0)",), ("t0", None, 7))

ROWS = (*PRODUCTIONS, *MUTATING)


def alone(production: Production) -> AtenProgram:
    """A program of one statement, whose operands are its inputs; it returns the results."""
    kinds = [place.kind for place in production.operands]
    inputs = [(f"{kind}{i}", kind) for i, kind in enumerate(kinds)]
    results = [f"t{i}" for i in range(len(production.results))]
    line = production.line(results, [name for name, _ in inputs])
    usable = [name for name, kind in zip(results, production.results, strict=True) if kind != "_"]
    return AtenProgram(tuple(inputs), (line,), tuple(usable))


def test_there_are_at_least_200_operators() -> None:
    assert len(OPERATORS) >= 200


def test_each_row_is_there_once() -> None:
    assert len(set(PRODUCTIONS)) == len(PRODUCTIONS)


@pytest.mark.parametrize("production", ROWS, ids=lambda production: production.text)
def test_a_row_gives_the_kinds_that_it_says_and_its_fake_results_look_like_the_real_ones(
    production: Production,
) -> None:
    program = alone(production)
    results = program.function()(*program.example_inputs())
    kinds = [KINDS[kind] for kind in production.results.replace("_", "")]
    assert [(x.shape, x.dtype) for x in results] == [(kind.shape, kind.dtype) for kind in kinds]
    with FakeTensorMode() as mode:
        fake = program.function()(*map(mode.from_tensor, program.example_inputs()))
    assert list(map(layout, fake)) == list(map(layout, results))
    graph = traced(program.function(), *program.example_inputs(), functional=False).graph
    assert len(graph.outputs) == len(results)


@pytest.mark.parametrize("production", ROWS, ids=lambda production: production.text)
def test_a_row_writes_what_it_marks_and_results_lie_only_in_what_it_marks(
    production: Production,
) -> None:
    program = alone(production)
    inputs, before = program.example_inputs(), program.example_inputs()
    results = program.function()(*inputs)
    memory = {r.untyped_storage()._cdata for r in results if isinstance(r, Tensor) and r.numel()}
    for place, given, was in zip(production.operands, inputs, before, strict=True):
        assert place.aliased or given.untyped_storage()._cdata not in memory
        if not place.written:
            assert_same_bits(given, was)


def test_the_inputs_of_a_seed_are_the_same_each_time_and_share_no_memory() -> None:
    program = AtenProgram(tuple((f"{kind}0", kind) for kind in KINDS), (), (None,))
    first, second = program.example_inputs(3), program.example_inputs(3)
    assert_same_bits(first, second)
    storages = {x.untyped_storage()._cdata for x in (*first, *second)}
    assert len(storages) == 2 * len(KINDS)
    assert not torch.equal(first[0], program.example_inputs(4)[0])


def test_a_program_reads_like_this() -> None:
    assert str(ADDS) == (
        "def program(m0):\n    t0 = aten.add_.Tensor(m0, m0)\n    return (t0, None, 7,)\n"
    )
    assert ADDS.operators() == {"aten.add_.Tensor"}
    (given,) = ADDS.example_inputs()
    assert ADDS.function()(given) == (given, None, 7)


def test_a_traceback_shows_the_statement_that_failed() -> None:
    program = AtenProgram((("m0", "m"),), ("t0 = aten.mm.default(m0, 7)",), ("t0",))
    with pytest.raises(Exception, match="mm") as caught:
        program.function()(*program.example_inputs())
    assert "t0 = aten.mm.default(m0, 7)" in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
@pytest.mark.parametrize("program", [ADDS, AtenProgram((), (), (None,))])
def test_a_script_runs_the_check_on_the_same_program(program: AtenProgram, tmp_path: Path) -> None:
    path = tmp_path / "replay.py"
    path.write_text(program.as_script("print(program.source(), end='')"))
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env={"PYTHONPATH": "."}, check=True
    )
    assert done.stdout == program.source()
