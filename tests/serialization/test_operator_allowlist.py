"""Operators that an untrusted file may not call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

import nimble_fx
from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph
from nimble_fx.serialization import check_harmless
from tests.support.bits import assert_same_bits
from tests.support.saved import programs_of_models

aten = torch.ops.aten


@pytest.fixture
def custom() -> Iterator[torch._ops.OpOverload]:
    """An operator that a user of this process registered."""
    with torch.library._scoped_library("nimble_test", "FRAGMENT") as library:
        library.define("run(str command) -> Tensor")
        yield torch.ops.nimble_test.run.default


def graph_of(target: torch._ops.OpOverload, *args: object) -> TaskGraph:
    return TaskGraph("program", (), (), (Task("t", target, args),), ())


def test_what_models_call_is_harmless() -> None:
    for program in programs_of_models():
        check_harmless(program.graph)


@pytest.mark.parametrize(
    "target", [aten.from_file.default, aten.from_file.out, aten._print.default]
)
def test_an_operator_that_reaches_out_is_refused(target: torch._ops.OpOverload) -> None:
    with pytest.raises(FileError, match=r"t calls aten::.*trust_source=True"):
        check_harmless(graph_of(target, "/etc/passwd"))


LOOPS = (
    *(aten.diff, aten.combinations, aten.gru.input, aten.gru.data, aten.lstm.input),
    *(aten.rnn_tanh.input, aten.rnn_relu.input, aten.quantized_lstm.input),
)


@pytest.mark.parametrize("target", LOOPS, ids=str)
def test_an_operator_that_loops_to_return_its_type_is_refused(target: Any) -> None:
    """As often as the file says: one claim of a long sequence would take hours to check."""
    overload = target if isinstance(target, OpOverload) else target.default
    with pytest.raises(FileError, match=r"t calls aten::.*trust_source=True"):
        check_harmless(graph_of(overload, Ref("x")))


def test_a_trace_of_such_an_operator_has_those_of_its_steps(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.diff(x, n=3)

    x = torch.randn(8)
    with torch.no_grad():
        torch.compile(program, backend="nimble")(x)
    saved = nimble_fx.programs()[-1].save(tmp_path / "program.json")
    assert_same_bits(nimble_fx.load(saved).bind({})(x), [program(x)])


def test_an_operator_of_somebody_elses_is_refused(custom: torch._ops.OpOverload) -> None:
    with pytest.raises(FileError, match="t calls nimble_test::run"):
        check_harmless(graph_of(custom, "rm"))
