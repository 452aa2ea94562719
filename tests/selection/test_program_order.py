"""A program in traced order is proved like any other schedule before it runs."""

import pytest
import torch
from torch import Tensor

from nimble_fx.codegen.emit import emit
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.selection import program_order
from nimble_fx.selection.program_order import in_program_order
from nimble_fx.selection.traced_program import TracedProgram
from tests.support.schedules import traced


def branches(x: Tensor) -> Tensor:
    return x.exp() + x.sin()


def a_program() -> TracedProgram:
    return TracedProgram(traced(branches, torch.ones(3)), {"x": "input"}, Cpu(), Cpu.specs)


def test_it_has_one_stream_the_order_of_the_trace_and_what_the_program_has() -> None:
    program = a_program()
    made = in_program_order(program)
    assert made.graph.n_streams == 1
    names = [task.name for task in made.graph.tasks]
    assert names == [task.name for task in program.graph.tasks]
    assert made.parameters == program.parameters


def test_its_text_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def emit_less(graph: TaskGraph) -> str:
        return "\n".join(line for line in emit(graph).splitlines() if "sin" not in line)

    monkeypatch.setattr(program_order, "emit", emit_less)
    with pytest.raises(ScheduleError):
        in_program_order(a_program())
