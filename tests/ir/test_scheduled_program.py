"""The file name of an emitted module differs for different texts, and only depends on the text."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from nimble_fx.codegen.emit import emit
from nimble_fx.ir.scheduled_program import ScheduledProgram, file_name
from tests.support.schedules import schedule_of


def test_the_file_name_follows_the_text_and_is_fit_for_a_file() -> None:
    assert file_name("Net.forward (backward)", "a") == file_name("Net.forward (backward)", "a")
    assert file_name("Net", "a") != file_name("Net", "b")
    assert "/" not in file_name("../x", "a")
    assert all(len(os.fsencode(file_name(c * 999, "a"))) < 120 for c in "aé模😀")
    assert " " not in file_name("Net.forward (backward)", "a")


def test_tracebacks_show_the_file_that_was_written_or_a_name_of_its_own() -> None:
    graph = schedule_of(torch.exp, torch.zeros(2))
    program = ScheduledProgram(graph, emit(graph), "cpu")
    assert program.file == f"<nimble_fx {file_name(graph.name, program.source)}>"
    assert replace(program, path=Path("/tmp/exp.py")).file == "/tmp/exp.py"
