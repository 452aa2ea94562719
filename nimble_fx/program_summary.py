"""The summary of a program: a text of one screen."""

from collections.abc import Sequence

from nimble_fx.ir.display import plural
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.symbolic_sizes import extent_nbytes
from nimble_fx.ir.task_graph import Ref, TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.fastest import KernelChoice
from nimble_fx.selection.candidate import Candidate, candidate_table

N_SHOWN = 3
"""The most inputs that a one-line description names."""


def summary(
    scheduled: ScheduledProgram,
    status: CaptureStatus,
    kernel_choice: KernelChoice | None,
    n_traced: int | None,
    candidates: Sequence[Candidate],
) -> str:
    """The text; arguments as the attributes of `nimble_fx.Program`."""
    graph = scheduled.graph
    frees = sum(len(task.frees) for task in graph.tasks)
    rows = {
        "inputs": described_inputs(graph),
        "tasks": _tasks(graph, n_traced),
        "streams": _streams(graph),
        "waits": f"{graph.n_waits} for {graph.n_edges} dependencies between tasks",
        "forks": f"{len(graph.forks)} from stream 0, {len(graph.joins)} joined to it",
        "frees": f"{frees} values before the end",
        "runs on": scheduled.device,
        "frozen": _frozen(status),
        "memory": _memory(status),
        "folded": _folded(scheduled),
        "kernels": str(kernel_choice or ""),
        "module": str(scheduled.path or scheduled.file),
        "passes": "\n           ".join(graph.provenance),
    }
    lines = [f"  {key:9}{text}" for key, text in rows.items() if text]
    if candidates:
        on_gpu = scheduled.device != "cpu"
        lines += [f"  {line}" for line in candidate_table(candidates, on_gpu)]
    return "\n".join([graph.name, *lines])


def described_inputs(graph: TaskGraph) -> str:
    """The inputs that are not parameters or buffers, as a text: "x f32[s0, 4], 1 size"."""
    inputs = [value for value in graph.inputs if not value.static]
    shown = [f"{v.name} {v.type}" for v in inputs if not isinstance(v.type, ScalarType)]
    n_sizes = len(inputs) - len(shown)
    more = [f"{len(shown) - N_SHOWN} more"] if len(shown) > N_SHOWN else []
    sizes = [plural(n_sizes, "size")] if n_sizes else []
    return ", ".join([*shown[:N_SHOWN], *more, *sizes]) or "nothing but parameters"


def _tasks(graph: TaskGraph, n_traced: int | None) -> str:
    """The number of tasks, and of the operators that they compute."""
    n_others = len(graph.tasks) - len(graph.launching)
    others = f", {n_others} without a kernel (views, items of results)" if n_others else ""
    traced = "" if n_traced is None else f"; PyTorch traced {plural(n_traced, 'operator')}"
    return f"{len(graph.launching)} launched{others}{traced}"


def _streams(graph: TaskGraph) -> str:
    urgent = "" if graph.urgent is None else f"; stream {graph.urgent} is urgent"
    return f"{graph.n_streams} (width {graph.width}{urgent})"


def _frozen(status: CaptureStatus) -> str:
    if not status.frozen:
        freed = "the parameters that it was captured with were freed"
        return f"no: {status.reason or (freed if status.n_captures else 'not called yet')}"
    graphs = f"yes, {plural(status.n_graphs, 'graph')}"
    return f"{graphs}; no more: {status.reason}" if status.reason else graphs


def _memory(status: CaptureStatus) -> str:
    """The memory that the CUDA graphs own, by stream, as a text."""
    if not status.frozen:
        return ""
    by_stream = sorted(enumerate(status.nbytes), key=lambda pair: -pair[1])
    most = ", ".join(f"s{i} {_size(nbytes)}" for i, nbytes in by_stream[:4])
    more = ", ..." if len(by_stream) > 4 else ""
    return f"{_size(sum(status.nbytes))} ({most}{more}), workspaces of libraries included"


def _folded(scheduled: ScheduledProgram) -> str:
    """The inputs that are computed from parameters, and their memory, as a text."""
    if scheduled.folded is None:
        return ""
    graph = scheduled.folded.graph
    returned = {ref.name for ref in graph.outputs if isinstance(ref, Ref)}
    kept = {key for value in graph.values if value.name in returned for key in value.holds}
    nbytes = dict.fromkeys(kept, 0)
    for value in graph.values:  # views share the memory of other values, which is counted already
        if isinstance(value.type, TensorType):
            whole = extent_nbytes(value.type)
            nbytes.update({key: max(nbytes[key], whole) for key in kept.intersection(value.holds)})
    weights = plural(scheduled.n_folded, "weight")
    return f"{weights} of {_size(sum(nbytes.values()))}, computed from the model's"


def _size(nbytes: int) -> str:
    kib = nbytes / 2**10
    return f"{kib:.3g} KiB" if kib < 100 else f"{kib / 2**10:.1f} MiB"
