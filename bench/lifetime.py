"""Measures what deleted compiled models leave behind: programs, texts, files and memory.

Small models are compiled, used and deleted one after another: for inference and training, on the
CPU and the virtual device, called with several shapes, with failing compiles, saved and loaded. The
same number of compiles by a backend of PyTorch's that runs eager shows what PyTorch itself keeps.
"""

import linecache
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nimble_fx
from bench.command_line.console import print_table
from bench.command_line.record import Target, finish, parser
from bench.overhead import Net, now
from nimble_fx.frontend.models.model_function import unique_function
from nimble_fx.torch_internals.dynamo.caches import drop_compiled

N_LIVES = 2000
N_SAMPLES = 5

PEERS = ("aot_eager", "eager")

Life = Callable[[nn.Module, Tensor], object]
"""Compiles a model, uses it, and returns the objects that should not outlive it."""


@dataclass(frozen=True)
class Left:
    """What a number of deleted models have left behind.

    Attributes:
        n_lives: the number of models.
        alive: the number of programs, compiled objects and models that still exist.
        texts: the number of emitted texts in `linecache`.
        files: the number of open file descriptors, minus those at the beginning.
        mib: the process's memory.
        blocks: the number of memory blocks that Python uses.
    """

    n_lives: int
    alive: int
    texts: int
    files: int
    mib: float
    blocks: int


Series = Mapping[str, Sequence[Left]]
"""By backend: what was left after each part of the run, and at the end."""


class FailingPolicy:
    """A policy that raises."""

    name = "failing"

    def __call__(self, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        raise ArithmeticError(graph.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the results; returns 0."""
    options = parser(__doc__)
    options.add_argument("--lives", type=int, default=N_LIVES, help="lives of each kind")
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        ours = list(lives(Path(directory)).values())
        series = {"nimble": list(left(ours, args.lives))}
    series |= {name: list(left(peers(name), args.lives)) for name in PEERS}
    print_left(series)
    finish("lifetime", args, {"left": series}, targets(series))
    return 0


def left(ways: Sequence[Life], n: int) -> Iterator[Left]:
    """Runs the lives in turn; returns what is left after each fifth of them."""
    torch.compiler.reset()
    n_files = n_open_files()
    witnesses: list[weakref.ref[object]] = []
    samples = {n * k // N_SAMPLES for k in range(1, N_SAMPLES + 1)}
    for i, way in enumerate(islice(cycle(ways), n), start=1):
        live(way, witnesses)
        if i in samples:
            mib, blocks = now()
            witnesses = [each for each in witnesses if each() is not None]
            files = n_open_files() - n_files
            yield Left(i, len(witnesses), n_texts(), files, mib, blocks)


def live(way: Life, witnesses: list[weakref.ref[object]]) -> None:
    """Runs one life, and notes the objects that must end with it."""
    model = Net()
    made = way(model, torch.randn(2, 16))
    things = [model, *nimble_fx.programs(), *(made if isinstance(made, (list, tuple)) else [made])]
    witnesses += [weakref.ref(each) for each in things if each is not None]


def n_open_files() -> int:
    """The number of open file descriptors of the process."""
    return len(os.listdir("/proc/self/fd"))


def n_texts() -> int:
    """The number of emitted texts in `linecache`."""
    return sum(file.startswith("<nimble_fx") for file in linecache.cache)


def lives(directory: Path) -> Mapping[str, Life]:
    """The kinds of lives with nimble_fx."""
    return {
        "inference": infer,
        "training": train,
        "frozen": partial(infer, device="virtual"),
        "frozen training": partial(train, device="virtual"),
        "other shapes": partial(infer, sizes=(2, 3, 5)),
        "other shapes, frozen": partial(infer, sizes=(2, 3, 5), device="virtual"),
        "failing": fail,
        "saved and loaded": partial(save_and_load, directory / "program.json"),
        "planned": lambda model, x: nimble_fx.plan(model, x, device="h100"),
        "prepared": prepare,
    }


def infer(model: nn.Module, x: Tensor, sizes: Sequence[int] = (2,), **options: Any) -> object:
    """Calls for inference."""
    compiled = nimble_fx.compile(model, x, **options)
    for rows in sizes:
        compiled(torch.randn(rows, 16))
    return compiled


def train(model: nn.Module, x: Tensor, **options: Any) -> object:
    """A training step."""
    compiled = nimble_fx.compile(model, x, training=True, **options)
    compiled(x).sum().backward()
    return compiled


def fail(model: nn.Module, x: Tensor) -> None:
    """A compile that raises."""
    try:
        nimble_fx.compile(model, x, policy=FailingPolicy())
    except nimble_fx.NimbleError:
        return
    raise AssertionError("a policy that raises was not said to")


def save_and_load(path: Path, model: nn.Module, x: Tensor) -> object:
    """Saves a program and loads it again."""
    compiled = nimble_fx.compile(model, x)
    compiled.programs[0].save(path)
    program = nimble_fx.load(path)
    bound = program.bind(model)
    bound(x)
    return compiled, program, bound


def prepare(model: nn.Module, x: Tensor) -> object:
    """Uses the interface of the original system."""
    prepared = nimble_fx.Nimble(model)
    prepared.prepare(x)
    prepared(x)
    return prepared


def peers(backend: str) -> list[Life]:
    """The same lives with a backend of PyTorch's, which compiles as often, for the same shapes."""
    other_shapes = partial(run_with, backend, sizes=(2, 3, 5))
    once, train = partial(run_with, backend), partial(run_with, backend, training=True)
    return [once, train, once, train, other_shapes, other_shapes, once, once, once, once]


def run_with(
    backend: str,
    model: nn.Module,
    x: Tensor,
    sizes: Sequence[int] = (2,),
    training: bool = False,
) -> None:
    """Calls a model that a backend of PyTorch's compiles, and removes it from Dynamo's caches."""
    function = unique_function(model)
    compiled = torch.compile(function, backend=backend)
    for rows in sizes:
        with torch.set_grad_enabled(training):
            result = compiled(torch.randn(rows, 16))
        if training:
            result.sum().backward()
    drop_compiled(function.__code__, None)


def growth(series: Sequence[Left]) -> tuple[float, float]:
    """The growth for each life, after the first ones: KiB of memory, and Python blocks."""
    first, last = series[0], series[-1]
    n = last.n_lives - first.n_lives
    return 1024 * (last.mib - first.mib) / n, (last.blocks - first.blocks) / n


def print_left(series: Series) -> None:
    """Prints what is left at the end, and the memory during the run."""
    header = ["", "alive", "texts", "files", "KiB a life", "blocks a life"]
    rows = []
    for name, each in series.items():
        end, (kib, blocks) = each[-1], growth(each)
        counts = [f"{n}" for n in (end.alive, end.texts, end.files)]
        rows.append([name, *counts, f"{kib:.1f}", f"{blocks:.1f}"])
    print_table("left of compiled models that are gone", header, [rows])
    sampled = [
        [f"after {samples[0].n_lives}", *(f"{each.mib:.0f}" for each in samples)]
        for samples in zip(*series.values(), strict=True)
    ]
    print_table("MiB of the process", ["lives", *series], [sampled])


def targets(series: Series) -> list[Target]:
    """Nothing must be left, and memory must not grow more than with PyTorch alone."""
    ours = series["nimble"][-1]
    blocks = growth(series["nimble"])[1] - growth(series["aot_eager"])[1]
    return [
        Target("programs, compiled objects and models alive", ours.alive, 0),
        Target("texts in linecache", ours.texts, 0),
        Target("file descriptors", ours.files, 0),
        Target("blocks of Python's a life beyond aot_eager's", blocks, 20),
    ]


if __name__ == "__main__":
    sys.exit(main())
