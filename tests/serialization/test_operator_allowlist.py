"""Operators that an untrusted file may not call."""

from collections.abc import Iterator

import pytest
import torch

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.serialization import check_harmless
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


def test_an_operator_of_somebody_elses_is_refused(custom: torch._ops.OpOverload) -> None:
    with pytest.raises(FileError, match="t calls nimble_test::run"):
        check_harmless(graph_of(custom, "rm"))
