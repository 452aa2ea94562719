"""Compares the memory of each policy's schedule with that of one stream.

Simulates PyTorch's caching allocator on the allocations and frees of a graph. "Segments" is the
memory that it takes from CUDA, in segments of at least 2 or 20 MiB for each stream, which it keeps
as long as the graph exists. "A pool a stream" is the same without segments: the most bytes that
each stream uses at a time; "in use at once" is the most of all streams together. Each stream with
matrix products has a cuBLAS workspace: an H100's, or 1 MiB if all products are small. On a GPU the
pools of the frozen programs are also measured.
"""

import argparse
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from bench.command_line.console import print_table, progress
from bench.command_line.record import finish, keep
from bench.command_line.selection import chosen, selecting_parser, zoo
from bench.models.model import Form, Inputs, Model
from bench.peers.baselines import policies
from bench.peers.comparison_case import Step
from bench.policies import POLICIES, find_policy
from bench.problems.model_graphs import Traces
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.cuda import MAX_STREAMS
from nimble_fx.devices.specs import DEFAULT_GPU, DEVICES
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import PolicyName
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.pipeline import Policy, passes_for, schedule
from nimble_fx.selection.search_space import scheduled_candidates
from nimble_fx.simulation.memory_model import footprint


@dataclass(frozen=True)
class Memory:
    """The memory of a model with one policy, forward and backward together.

    Attributes:
        n_streams: the number of streams of the graph that has most.
        reserved_bytes, pooled_bytes, peak_bytes: see `memory_model.Footprint`.
        measured_bytes: the frozen programs' pools on this GPU; None if there is none.
    """

    n_streams: int
    reserved_bytes: int
    pooled_bytes: int
    peak_bytes: int
    measured_bytes: int | None = None


@dataclass(frozen=True)
class MemoryRow:
    """A model at a batch size."""

    model: str
    title: str
    batch: int
    policies: Mapping[str, Memory]

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "MemoryRow":
        """The row that JSON was made from."""
        memory = {name: Memory(**each) for name, each in plain["policies"].items()}
        return MemoryRow(**{**plain, "policies": memory})


def measure(model: Model, form: Form, batch: int, args: argparse.Namespace) -> MemoryRow:
    """Traces a model once and simulates its graphs with each policy, and always with "serial"."""
    torch.compiler.reset()
    torch.manual_seed(0)
    device, step = torch.device(args.device), Step(form, args.training)
    built = form.build().to(device).train(args.training)
    inputs = tuple(x.to(device) for x in form.inputs(batch))
    traces = Traces()
    step(built, torch.compile(built, backend=traces), inputs)
    rows = {}
    for name in dict.fromkeys(["serial", *args.policies]):
        owned = pools(step, built, inputs, name) if device.type == "cuda" else None
        rows[name] = replace(played(traces.graphs, name), measured_bytes=owned)
    title = f"{model.title}, {form.title}, batch {batch}" + ", training" * args.training
    return MemoryRow(model.name, title, batch, rows)


def played(graphs: Sequence[TaskGraph], policy: str) -> Memory:
    """The memory of the graphs, if they share none with each other."""
    scheduled = [scheduled_by(find_policy(policy), graph) for graph in graphs]
    nbytes = DEVICES[DEFAULT_GPU].workspace_nbytes
    footprints = [footprint(graph, nbytes) for graph in scheduled]
    return Memory(
        n_streams=max((graph.n_streams for graph in scheduled), default=0),
        reserved_bytes=sum(each.reserved for each in footprints),
        pooled_bytes=sum(each.pooled for each in footprints),
        peak_bytes=sum(each.peak for each in footprints),
    )


def scheduled_by(policy: PolicyName | Policy, graph: TaskGraph) -> TaskGraph:
    """The graph as a policy schedules it, with the costs of an H100 if it uses any."""
    costs = Roofline(DEVICES[DEFAULT_GPU])
    if policy == "auto":
        return scheduled_candidates(graph, costs, MAX_STREAMS, {})[0].graph
    if policy == "critical-path":
        policy = CriticalPath(costs, MAX_STREAMS)
    return schedule(graph, passes_for(policy, MAX_STREAMS))


def pools(step: Step, model: nn.Module, inputs: Inputs, policy: str) -> int:
    """The bytes of all CUDA graphs' pools on this GPU, after calls with a policy only."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()  # the pools of graphs that are gone
    (compile_,) = policies([policy]).values()
    run = compile_(model, inputs)
    for _ in range(2):
        step(model, run, inputs)
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))


def print_row(row: MemoryRow) -> None:
    """Prints a line for each policy."""
    on_gpu = any(each.measured_bytes for each in row.policies.values())
    header = ["", "streams", "segments", "a pool a stream", "in use at once"]
    header += ["on this GPU"] * on_gpu
    serial = row.policies["serial"]
    lines = [
        [
            name,
            str(each.n_streams),
            _mib(each.reserved_bytes, serial.reserved_bytes),
            _mib(each.pooled_bytes, serial.pooled_bytes),
            _mib(each.peak_bytes, serial.peak_bytes),
            *[_mib(each.measured_bytes, serial.measured_bytes)] * on_gpu,
        ]
        for name, each in row.policies.items()
    ]
    print_table(f"{row.title}: MiB, and times those of serial", header, [lines])


def _mib(nbytes: int | None, serial: int | None) -> str:
    if nbytes is None:
        return "-"
    return f"{nbytes / 2**20:.1f}" + (f" ({nbytes / serial:.2f})" if serial else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns 0."""
    options = selecting_parser(__doc__, zoo(), list(POLICIES))
    options.add_argument("--training", action="store_true", help="forward and backward")
    args = options.parse_args(argv)
    cases = chosen(args, args.training)
    rows: list[MemoryRow] = []
    stem = "memory_training" if args.training else "memory"
    with progress(stem, len(cases)) as begin:
        for model, form, batch in cases:
            begin(f"{model.title}, batch {batch}")
            rows.append(measure(model, form, batch, args))
            gc.collect()
            print_row(rows[-1])
            keep("memory", args, {"rows": rows}, stem=stem)
    finish("memory", args, {"rows": rows}, stem=stem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
