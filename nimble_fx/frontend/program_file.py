"""`nimble_fx.load(path)`: loads a saved program and proves it legal again."""

import os
from dataclasses import replace

from nimble_fx import serialization
from nimble_fx.codegen.emit import emit
from nimble_fx.devices import device_here
from nimble_fx.errors import FileError, ScheduleError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.program import Program
from nimble_fx.runtime.capture.checks import why_not_captured
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.verify import verify, verify_source
from nimble_fx.verify.structure import verify_structure


def load(path: str | os.PathLike[str], *, trust_source: bool = False) -> Program:
    """Loads a program from a file that `Program.save` wrote, and proves it legal again.

    Nothing in the file is run: the graph is read, its types and memory are checked against its
    operators, the schedule is proved, and the module is emitted again.

    Args:
        path: the file.
        trust_source: whether you trust the author of the file. Then the text in the file runs,
            which may have been edited, if it is proved to be the graph's schedule; and custom
            operators may be called.

    Raises:
        FileError: it is not a program file, was written by other versions or for another device,
            needs an operator that is not registered, has wrong types or memory for a value, or
            cannot be proved legal.
    """
    file = serialization.absolute(path)
    try:
        program = _proved(serialization.decode(serialization.read(file)), trust_source)
    except (FileError, ScheduleError) as error:
        raise FileError(f"{file}: {error}") from error
    reason = why_not_captured(program.graph, device_here(program.device))
    return Program(program, CaptureStatus(reason))


def _proved(stored: ScheduledProgram, trust_source: bool) -> ScheduledProgram:
    """The program of a file with the text that will run, both proved; its folded weights too."""
    graph = stored.graph
    if not trust_source:
        serialization.check_harmless(graph)
    verify_structure(graph)
    serialization.check_claims(graph, stored.sizes)
    verify(graph)
    scheduled = stored if trust_source else replace(stored, source=emit(graph))
    verify_source(scheduled.source, graph)
    if stored.folded is None:
        return scheduled
    folded = _proved(stored.folded, trust_source)
    serialization.check_folded(stored)
    return replace(scheduled, folded=folded)
