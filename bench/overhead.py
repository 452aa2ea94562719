"""Measures the overhead of a call: host time by number of parameters, and memory over time.

Launched programs are measured on the CPU, without the time of their operators; frozen programs on
the virtual device, with replays that do nothing, including copies of inputs and outputs. With a
GPU, or a stand-in for the CUDA runtime, it also compares a call's host time with other ways to call
a model in PyTorch (`bench.measuring.host_time`), in inference and training.
"""

import gc
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nimble_fx
from bench.command_line.console import print_table
from bench.command_line.record import Target, finish, keep, parser
from bench.command_line.selection import at_least_one
from bench.measuring.host_time import (
    BACKEND,
    LEAST,
    OVERWRITTEN,
    UNGUARDED,
    HostTime,
    host_time,
    is_stand_in,
    print_host_times,
)
from bench.measuring.host_time import CASES as HOST_CASES
from bench.measuring.timing import Spread, interleaved_seconds
from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.devices import Capture
from nimble_fx.devices.cpu import Cpu
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.fallback import Reporter
from nimble_fx.ir.task_graph import Input, TaskGraph
from nimble_fx.ir.types import TensorType
from nimble_fx.pipeline import passes_for, schedule
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.launch import Launcher
from nimble_fx.tracing.aten_to_tasks import trace

N_PARAMETERS = (1, 64, 256, 1024)
N_CALLS = 200
N_SHAPES = 5
N_LONG = 10_000
N_SETTLED = 100


@dataclass(frozen=True)
class Overhead:
    """The overhead of a call, in microseconds.

    Attributes:
        how: how the program runs.
        by_parameters: the overhead for each number of parameters.
        us_per_call: the intercept of the line through these.
        us_per_parameter: its slope.
    """

    how: str
    by_parameters: dict[int, Spread]
    us_per_call: float
    us_per_parameter: float


@dataclass(frozen=True)
class Memory:
    """The memory of a process that calls a frozen program many times, with a few shapes in turn.

    Attributes:
        n_calls: the number of calls, also the first ones.
        settled_mib: the process's memory after the first calls.
        end_mib: the process's memory after all calls.
        settled_blocks: the memory blocks that Python uses after the first calls.
        end_blocks: the memory blocks that Python uses after all calls.
        n_graphs: the number of captures kept at the end.
    """

    n_calls: int
    settled_mib: float
    end_mib: float
    settled_blocks: int
    end_blocks: int
    n_graphs: int


class Instant(Virtual):
    """A virtual device whose replays do nothing."""

    def capture(self, *args: Any, **kwargs: Any) -> Capture:
        return replace(super().capture(*args, **kwargs), replay=lambda: None)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the results; returns 0."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=at_least_one, default=15, help="samples of each figure")
    options.add_argument(
        "--parameters", type=at_least_one, default=2000, help="the most of a model"
    )
    options.add_argument(
        "--calls", type=at_least_one, default=N_LONG, help="calls over a few shapes"
    )
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    overheads = [overhead(how, args.rounds) for how in ("launched", "frozen")]
    print_overheads(overheads)
    memory = many_calls(args.calls)
    print_memory(memory)
    results: dict[str, object] = {"overhead": overheads, "memory": memory}
    targets = [*overhead_targets(overheads), *memory_targets(memory)]
    if torch.cuda.is_available():
        results["stand-in runtime"] = is_stand_in()
        results["host time"] = times = []
        for training, (n_inputs, n_parameters) in product((False, True), HOST_CASES):
            if n_parameters <= args.parameters:
                keep("overhead", args, results, targets)
                times.append(host_time(n_inputs, n_parameters, training, args.rounds))
        print_host_times(times)
        targets += host_time_targets(times)
    finish("overhead", args, results, targets)
    return 0


def overhead(how: str, rounds: int) -> Overhead:
    """Times calls with increasing numbers of parameters, in turn."""
    with torch.no_grad():
        pairs = {n: contestants(how, n) for n in N_PARAMETERS}
        calls = {f"{part} {n}": call for n, pair in pairs.items() for part, call in pair.items()}
        seconds = interleaved_seconds(calls, rounds, N_CALLS)
    added = {
        n: [1e6 * (a - b) for a, b in zip(seconds[f"call {n}"], seconds[f"bare {n}"], strict=True)]
        for n in N_PARAMETERS
    }
    medians = [statistics.median(added[n]) for n in N_PARAMETERS]
    slope, intercept = statistics.linear_regression(N_PARAMETERS, medians)
    return Overhead(how, {n: Spread.of(added[n]) for n in N_PARAMETERS}, intercept, slope)


def contestants(how: str, n_parameters: int) -> dict[str, Callable[[], object]]:
    """A call of a program with that many parameters, and the part that is not nimble_fx's."""
    x, parameters = torch.randn(8), [torch.randn(8) for _ in range(n_parameters)]
    launcher = Launcher(*program(n_parameters), {}, Instant() if how == "frozen" else Cpu())
    run: Callable[[list[Any]], object] = launcher
    bare: Callable[[], object] = partial(torch.relu, x)
    if how == "frozen":
        run = FrozenProgram(
            launcher,
            PoolGroup(launcher.device),
            CaptureStatus(),
            Reporter("error"),
            CaptureOptions(),
        )
        bare = partial(int)
    return {"call": lambda: run([x, *parameters]), "bare": bare}


def program(n_parameters: int) -> tuple[TaskGraph, Any]:
    """One task on an input, and parameters that each call passes."""
    gm = torch.fx.experimental.proxy_tensor.make_fx(torch.relu)(torch.randn(8))
    graph = trace(gm, "overhead").graph
    kind = TensorType((8,), (1,), torch.float32, torch.device("cpu"))
    names = [f"w{i}" for i in range(n_parameters)]
    inputs = [Input(name, kind, (name,), static=True) for name in names]
    graph = schedule(replace(graph, inputs=(*graph.inputs, *inputs)), passes_for("nimble", None))
    return graph, load(emit(graph), f"<overhead {n_parameters}>")


class Net(nn.Module):
    """Two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x)) + torch.sigmoid(self.b(x))


def many_calls(n_calls: int) -> Memory:
    """Calls a program with symbolic sizes on the virtual device, shape after shape."""
    torch.compiler.reset()
    options: dict[str, Any] = {"device": "virtual", "on_fallback": "error"}
    compiled = torch.compile(Net(), backend="nimble", dynamic=True, options=options)
    xs = [torch.randn(rows, 16) for rows in range(2, 2 + N_SHAPES)]
    with torch.no_grad():
        run_in_turn(compiled, xs, N_SETTLED)
        settled = now()
        run_in_turn(compiled, xs, n_calls)
        end = now()
    (kept,) = [p.status.n_graphs for p in nimble_fx.programs()]
    return Memory(N_SETTLED + n_calls, settled[0], end[0], settled[1], end[1], kept)


def run_in_turn(compiled: Callable[[Tensor], object], xs: Sequence[Tensor], n: int) -> None:
    """Calls with each of the inputs in turn."""
    for i in range(n):
        compiled(xs[i % len(xs)])


def now() -> tuple[float, int]:
    """The process's resident memory in MiB, and the number of memory blocks that Python uses."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20, sys.getallocatedblocks()


def print_overheads(overheads: Sequence[Overhead]) -> None:
    """Prints a row for each way to run."""
    header = ["", *(f"{n} parameters" for n in N_PARAMETERS), "a call", "a parameter"]
    rows = [
        [
            each.how,
            *(f"{each.by_parameters[n].median:.1f} us" for n in N_PARAMETERS),
            f"{each.us_per_call:.1f} us",
            f"{each.us_per_parameter:.3f} us",
        ]
        for each in overheads
    ]
    print_table("what a call adds to its kernels", header, [rows])


def print_memory(memory: Memory) -> None:
    """Prints the memory before and after."""
    rows = [
        [f"after {N_SETTLED} calls", f"{memory.settled_mib:.1f}", f"{memory.settled_blocks}"],
        [f"after {memory.n_calls} calls", f"{memory.end_mib:.1f}", f"{memory.end_blocks}"],
    ]
    title = f"{N_SHAPES} shapes in turn, {memory.n_graphs} graphs"
    print_table(title, ["", "MiB of the process", "blocks of Python's"], [rows])


def overhead_targets(overheads: Sequence[Overhead]) -> list[Target]:
    """The targets: at most 10 us a call and 0.3 us a parameter."""
    return [
        target
        for each in overheads
        for target in (
            Target(f"{each.how}: us a call", each.us_per_call, 10),
            Target(f"{each.how}: us a parameter", each.us_per_parameter, 0.3),
        )
    ]


def host_time_targets(times: Sequence[HostTime]) -> list[Target]:
    """The targets: less than `torch.cuda.make_graphed_callables`, which has no guards.

    A backend may take 10 us, and 0.05 us a parameter, longer than the least that one can do.
    """
    targets = []
    for each in times:
        what = f"{each.n_inputs} inputs, {each.n_parameters} parameters, training {each.training}"
        for way in ("nimble_fx.compile",) if each.training else (UNGUARDED, OVERWRITTEN):
            ratio = each.by_way[way].median / each.by_way["make_graphed_callables"].median
            targets.append(Target(f"{what}: {way} / make_graphed_callables", ratio, 1))
        if not each.training:
            added = each.by_way[BACKEND].median - each.by_way[LEAST].median
            limit = 10 + 0.05 * each.n_parameters
            targets.append(Target(f"{what}: us that {BACKEND} adds to {LEAST}", added, limit))
    return targets


def memory_targets(memory: Memory) -> list[Target]:
    """The target: no growth beyond the rounding of an allocator."""
    grown = memory.end_blocks - memory.settled_blocks
    return [
        Target("MiB that the process has grown", memory.end_mib - memory.settled_mib, 1),
        Target("blocks that Python has more, of all", grown / memory.settled_blocks, 0.001),
    ]


if __name__ == "__main__":
    sys.exit(main())
