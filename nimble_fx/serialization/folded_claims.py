"""Checks what a file claims of the weights that a program takes folded."""

from nimble_fx.errors import FileError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import Ref
from nimble_fx.ir.written_inputs import written_inputs


def check_folded(program: ScheduledProgram) -> None:
    """Checks that `program.folded` computes the program's last inputs from parameters alone.

    Args:
        program: from a file; the graphs are valid, each by itself.

    Raises:
        FileError: it does not.
    """
    if program.folded is None:
        return
    graph, folded = program.graph, program.folded.graph
    types = folded.types
    computed = [types.get(out.name) if isinstance(out, Ref) else None for out in folded.outputs]
    last = graph.inputs[len(graph.inputs) - program.n_folded :]
    if not computed or computed != [value.type for value in last]:
        raise FileError(
            f"folded computes {computed}, which are not the last inputs of {graph.name}"
        )
    if not all(value.static for value in (*last, *folded.inputs)):
        raise FileError("folded computes what is not static, or from what is not static")
    if program.device != program.folded.device:
        raise FileError(
            f"{graph.name} runs on {program.device}, and its weights are folded on "
            f"{program.folded.device}"
        )
    for each in (graph, folded):
        written = sorted(written_inputs(each))
        if written:
            raise FileError(f"{each.name} writes {written[0]}, and so it can fold no weights")
