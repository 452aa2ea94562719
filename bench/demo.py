"""Compiles a model with nimble, checks it, times it, and shows the schedule and the module.

It runs on the GPU if there is one, as a frozen CUDA graph; otherwise on the CPU, where tasks run in
launch order, and the gain comes from folded weights, if these were faster when measured.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.syntax import Syntax
from torch import Tensor

import nimble_fx
from bench.command_line.console import console, print_table
from bench.command_line.record import default_device, finish, parser
from bench.command_line.selection import at_least_one
from bench.measuring.timing import Spread, interleaved_seconds, ratios, synchronize
from bench.models.examples import example
from bench.models.registry import ZOO
from nimble_fx.program import Program
from nimble_fx.runtime.samples import DISTURBED, are_disturbed

LINES_SHOWN = 40
GPU = "h100"
"""The GPU to plan for if there is none here."""


class Stages:
    """A progress bar on stderr with a line for each stage; records the seconds of each stage."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def stage(self, name: str, n_steps: int = 1) -> Iterator[Callable[[], None]]:
        """Runs a stage; the function that it yields advances the bar by one of `n_steps` steps."""
        line = self._progress.add_task(name, total=n_steps if n_steps > 1 else None)
        start = perf_counter()
        yield lambda: self._progress.advance(line)
        self.seconds[name] = perf_counter() - start
        self._progress.update(line, total=n_steps, completed=n_steps)


@contextmanager
def progress_bar() -> Iterator[Stages]:
    """Shows the stages while they run, if stderr is a terminal; only results go to stdout."""
    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        yield Stages(progress)


def difference(compiled: Tensor, eager: Tensor) -> float:
    """The greatest absolute difference.

    Raises:
        AssertionError: they differ by more than `torch.testing.assert_close` allows.
    """
    greatest = (compiled - eager).abs().max().item()
    torch.testing.assert_close(compiled, eager, msg=lambda text: f"nimble is not eager: {text}")
    return greatest


def print_module(program: Program) -> None:
    """Prints the first lines of the emitted module, and where the rest is."""
    screen = console()
    lines = program.source.splitlines()
    head = lines[:LINES_SHOWN]
    if screen.is_terminal:
        head = [
            line if len(line) < screen.width else line[: screen.width - 2] + "…" for line in head
        ]
    shown = "\n".join(head)
    screen.print(Rule(f"emitted module, lines 1 to {len(head)} of {len(lines)}", style="dim"))
    if screen.is_terminal:
        screen.print(Syntax(shown, "python"))
    else:
        print(shown)
    screen.print(Rule(style="dim"))
    print(f"the whole module: {program.path}")


def print_figures(
    title: str, greatest: float, stages: Stages, samples: dict[str, list[float]]
) -> None:
    """Prints that results are correct, the times of the stages, and the times of a call."""
    calls = [[name, Spread.of(seconds).milliseconds()] for name, seconds in samples.items()]
    ratio = Spread.of(samples["eager"]).median / Spread.of(samples["nimble"]).median
    rows = [
        [["max |nimble - eager|", f"{greatest:.3g}, within assert_close's tolerances"]],
        [[f"{name}, s", f"{seconds:.2f}"] for name, seconds in stages.seconds.items()],
        [*calls, ["eager / nimble, medians", f"{ratio:.3f}"]],
    ]
    print_table(title, ["", ""], rows)
    if are_disturbed(samples.values()):
        print(
            f"Some calls took more than {DISTURBED:.0f} times as long as others of their kind: "
            "other programs use this machine, and the times mean little. Run it again once they "
            "are done."
        )


def run(args: argparse.Namespace) -> int:
    """Builds, compiles, checks, times and prints; the exit status."""
    with progress_bar() as stages, torch.no_grad():
        with stages.stage("build"):
            shown = example(args.model, device=default_device())
        with stages.stage("compile, first call"):
            compiled = torch.compile(
                shown.model,
                backend="nimble",
                options={"dump": str(args.dump), "policy": args.policy},
            )
            compiled(*shown.inputs)
            synchronize()
        with stages.stage("check"):
            try:
                greatest = difference(compiled(*shown.inputs), shown.run())
            except AssertionError as error:
                print(f"FAILED: {error}", file=sys.stderr)
                return 1
        calls = {"eager": shown.run, "nimble": lambda: compiled(*shown.inputs)}
        with stages.stage("time both", args.rounds) as advance:
            device = default_device()
            samples = interleaved_seconds(calls, args.rounds, after_round=advance, device=device)

    if not nimble_fx.programs():
        print("FAILED: nimble scheduled nothing; its warning says why", file=sys.stderr)
        return 1
    program = nimble_fx.programs()[-1]
    print_figures(shown.title, greatest, stages, samples)
    if program.device == "cpu":
        print("On a CPU tasks run in launch order, so the schedule gains nothing there.")
    print(program.summary())
    print_module(program)
    if program.device == "cpu":
        print(f"What it would be on {GPU}, by simulation:")
        print(nimble_fx.plan(shown.model, shown.inputs, device=GPU).summary())
    results = {
        "model": shown.title,
        "max_difference": greatest,
        "stage_seconds": stages.seconds,
        "call_seconds": {name: Spread.of(seconds) for name, seconds in samples.items()},
        "eager_over_nimble": ratios(samples["eager"], samples["nimble"]),
    }
    finish("demo", args, results)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if the compiled model does not compute what eager computes."""
    options = parser(__doc__)
    options.add_argument("--model", choices=list(ZOO), default="nasnet_a_mobile")
    options.add_argument("--rounds", type=at_least_one, default=10)
    options.add_argument("--policy", default=None, help="nimble on a CPU, else auto, if not given")
    options.add_argument("--dump", type=Path, default=Path("build/demo"), help="for the module")
    args = options.parse_args(argv)
    if args.policy is None:  # on a CPU auto shows nothing: it has one stream
        args.policy = "nimble" if default_device().type == "cpu" else "auto"
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
