"""The schedule that moves nothing: one stream, in the order of the user's code."""

from nimble_fx.codegen.emit import emit
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.passes.assign_streams import AssignStreams
from nimble_fx.pipeline import completion_passes, schedule
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.verify import verify, verify_source


def in_program_order(program: TracedProgram) -> ScheduledProgram:
    """A program as it was traced, on one stream.

    Raises:
        ScheduleError: the trace is not legal.
    """
    graph = schedule(program.graph, (AssignStreams("serial"), *completion_passes()))
    verify(graph, program.graph)
    source = emit(graph)
    verify_source(source, graph)
    return program.scheduled(graph, source)
