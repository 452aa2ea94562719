"""Compares simulated times with measured ones, and predicts times for a GPU by name.

"Here": each kind of task is timed on made-up values, on a GPU by itself, on a CPU in its place
among the others. The program's time is simulated from these times and compared with its measured
time, without the overhead of `torch.compile`. For the GPU named by `--gpu` a roofline predicts the
times of tasks, which are also compared with published times.
"""

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import torch

from bench.command_line.console import print_table, progress, say
from bench.command_line.record import Target, finish, keep
from bench.command_line.selection import Chosen, at_least_one, chosen, selecting_parser, zoo
from bench.measuring.capture_backend import KeptPrograms
from bench.measuring.predicted import There, predicted_for
from bench.measuring.timing import Call, Spread, calls_per_sample, interleaved_seconds
from bench.models.model import Form, Model
from bench.tables.published import LIMIT, Comparison, comparisons, mean_error, mean_ratio
from nimble_fx.cost import Cost
from nimble_fx.cost.measured import Measured
from nimble_fx.devices import device_for
from nimble_fx.devices.specs import Device, find_device
from nimble_fx.errors import OptionError
from nimble_fx.frontend.models.model_function import unique_function
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.schedule_model import predict

CPU_LIMIT, GPU_LIMIT = 0.10, 0.08
"""The largest allowed error of the median prediction."""


@dataclass(frozen=True)
class Here:
    """A schedule's time on this machine, measured and predicted, in seconds.

    Attributes:
        samples: the measured times, round by round.
        predicted: the simulated time, with measured times of tasks.
        n_tasks: the number of tasks.
        n_guessed: how many of them could not be measured, so that the roofline predicts them.
    """

    samples: Sequence[float]
    predicted: float
    n_tasks: int
    n_guessed: int

    @property
    def error(self) -> float:
        """The relative error of the prediction; above 0 if it is too long."""
        return self.predicted / median(self.samples) - 1


@dataclass(frozen=True)
class SimulationRow:
    """A model at a batch size; `here` by policy."""

    model: str
    title: str
    batch: int
    here: Mapping[str, Here]
    there: There

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "SimulationRow":
        """The row that JSON was made from."""
        here = {name: Here(**each) for name, each in plain["here"].items()}
        return SimulationRow(**{**plain, "here": here, "there": There(**plain["there"])})


def measure(
    model: Model, form: Form, batch: int, device: torch.device, gpu: Device, rounds: int
) -> SimulationRow:
    """Compiles a model with each policy that differs here, times it, and predicts its time."""
    policies = ("serial",) if device.type == "cpu" else ("serial", "nimble")
    kept = {name: _compiled(form, batch, name, device) for name in policies}
    calls: dict[str, Call] = {name: each.again for name, each in kept.items()}
    with torch.no_grad():
        n_calls = calls_per_sample(calls["serial"])
        samples = interleaved_seconds(calls, rounds, n_calls, device=device)
        with TemporaryDirectory() as directory:
            costs = {name: _costs(each, device, Path(directory)) for name, each in kept.items()}
        # Before and after the tasks, so that a change of the machine's speed affects both.
        later = interleaved_seconds(calls, rounds, n_calls, device=device)
    here = {
        name: _here([*samples[name], *later[name]], each.graphs, costs[name])
        for name, each in kept.items()
    }
    there = predicted_for(gpu, kept["serial"].graphs)
    return SimulationRow(model.name, f"{model.title}, batch {batch}", batch, here, there)


def _compiled(form: Form, batch: int, policy: Any, device: torch.device) -> KeptPrograms:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = form.build().to(device).eval()
    inputs = tuple(x.to(device) for x in form.inputs(batch))
    kept = KeptPrograms(policy)
    compiled = torch.compile(unique_function(model), backend=kept)
    with torch.no_grad():
        for _ in range(3):  # the first captures on a GPU, and may time
            compiled(*inputs)
    return kept


_Costs = list[tuple[Device, Mapping[str, Cost]]]


def _costs(kept: KeptPrograms, device: torch.device, directory: Path) -> _Costs:
    runtime = device_for(device)
    if runtime is None:
        raise OptionError(f"nothing can be timed on {device}")
    models = [Measured.of(graph, runtime, directory) for graph in kept.graphs]
    return [(m.device, m(graph)) for m, graph in zip(models, kept.graphs, strict=True)]


def _here(samples: Sequence[float], graphs: Sequence[TaskGraph], costs: _Costs) -> Here:
    pairs = list(zip(graphs, costs, strict=True))
    each = [cost for _, by_name in costs for cost in by_name.values()]
    return Here(
        samples=samples,
        predicted=sum(predict(g, by_name, d).makespan_us for g, (d, by_name) in pairs) / 1e6,
        n_tasks=len(each),
        n_guessed=sum(cost.origin != "measured" for cost in each),
    )


def print_row(row: SimulationRow) -> None:
    """Prints times here (measured, predicted, error) and on the GPU (schedules, bound, reason)."""
    here = [
        [
            f"here, {name}",
            Spread.of(each.samples).milliseconds(),
            f"{1e3 * each.predicted:.2f} ms",
            f"{each.error:+.1%}",
        ]
        for name, each in row.here.items()
    ]
    there = row.there
    planned = [
        [
            f"{there.device}, {name}",
            "",
            f"{us / 1e3:.3f} ms",
            f"{there.schedules['serial'] / us:.2f} x",
        ]
        for name, us in {**there.schedules, "bound": there.bound}.items()
    ]
    print_table(row.title, ("", "measured", "predicted", ""), [here, planned])
    say(f"chosen: {there.best}, {there.gain:.2f} x; {there.reason}")


def print_published(compared: Sequence[Comparison]) -> None:
    """Prints a line for each published time, and the errors of the predictions."""
    lines = [
        [c.model, c.device, c.source, f"{c.published:.2f}", f"{c.predicted:.2f}", f"{c.error:+.1%}"]
        for c in compared
    ]
    header = ("", "device", "source", "published, ms", "predicted, ms", "error")
    print_table("Times that were published, one stream, by the roofline", header, [lines])


def targets(
    rows: Sequence[SimulationRow], compared: Sequence[Comparison], device: str
) -> list[Target]:
    """The targets: median errors here by policy, and the mean error of the roofline."""
    limit = CPU_LIMIT if torch.device(device).type == "cpu" else GPU_LIMIT
    names = dict.fromkeys(name for row in rows for name in row.here)
    found = []
    for name in names:
        errors = [abs(row.here[name].error) for row in rows if name in row.here]
        found.append(Target(f"median error of {name}, tasks measured", median(errors), limit))
    if compared:
        ratio = f"geometric mean of the ratios {mean_ratio(compared):.2f}"
        name = f"mean error of published times, which the roofline was set by, {ratio}"
        found.append(Target(name, mean_error(compared), LIMIT))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, predicts, prints and writes; returns 0."""
    options = selecting_parser(__doc__, zoo())
    options.add_argument("--gpu", default="h100", help="a device by name, to plan for")
    options.add_argument(
        "--rounds", type=at_least_one, default=10, help="samples, before and after"
    )
    options.add_argument("--minutes", type=float, help="begin no model after so long")
    args = options.parse_args(argv)
    try:
        gpu = find_device(args.gpu)
    except OptionError as error:
        options.error(str(error))
    compared = comparisons()
    cases = chosen(args, training=False)
    rows: list[SimulationRow] = []
    end = inf if args.minutes is None else monotonic() + 60 * args.minutes
    with progress("simulation", len(cases)) as begin:
        for model, form, batch in cases:
            if monotonic() > end:
                break
            begin(f"{model.title}, batch {batch}")
            rows.append(measure(model, form, batch, torch.device(args.device), gpu, args.rounds))
            gc.collect()
            print_row(rows[-1])
            kept = results(rows, cases, compared)
            keep("simulation", args, kept, targets(rows, compared, args.device))
    print_published(compared)
    finish("simulation", args, results(rows, cases, compared), targets(rows, compared, args.device))
    return 0


def results(
    rows: Sequence[SimulationRow], cases: Sequence[Chosen], compared: Sequence[Comparison]
) -> dict[str, Any]:
    """The results to write: rows, models that were not reached, and published times."""
    left = [f"{model.title}, batch {batch}" for model, _, batch in cases]
    return {"rows": rows, "published": compared, "not_reached": left[len(rows) :]}


if __name__ == "__main__":
    sys.exit(main())
