"""Whether it works on this GPU, and what it gains: the main job, checked and timed side by side.

Inference of NASNet-A: eager, a CUDA graph of the same kernels on one stream (policy "serial"),
nimble, and Inductor's "reduce-overhead". Each output is compared with eager's; nimble's, bit by
bit, with the one-stream graph's. Without a GPU it runs what a CPU can and writes nothing: that is
no evidence.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import nimble_fx
from bench.models.examples import NASNET_NAMES, Example, nasnet
from bench.record import finish, parser
from bench.screen import console, print_table
from bench.timing import Spread, interleaved_seconds, ratios

N_REPEATS = 20
"""Calls whose outputs must all be the same bits: a race would show as a difference."""

Call = Callable[[], Tensor]


def contenders(example: Example) -> dict[str, Call]:
    """A warm call by each contender."""
    options: dict[str, dict[str, object]] = {
        "one stream": {"backend": "nimble", "options": {"policy": "serial"}},
        "nimble": {"backend": "nimble"},
    }
    if torch.cuda.is_available():
        options["reduce-overhead"] = {"mode": "reduce-overhead"}
    calls: dict[str, Call] = {"eager": example.run}
    for name, chosen in options.items():
        compiled = torch.compile(example.model, **chosen)  # type: ignore[call-overload]
        calls[name] = partial(compiled, example.x)
        for _ in range(3):
            calls[name]()
    return calls


def check(calls: Mapping[str, Call]) -> dict[str, float]:
    """The greatest difference of each from eager.

    Raises:
        AssertionError: one is not eager's within `torch.testing.assert_close`'s tolerances, or
            nimble's bits are not those of the one-stream graph in each of its calls.
    """
    expected = calls["eager"]()
    greatest = {}
    for name, call in calls.items():
        output = call().clone()
        torch.testing.assert_close(output, expected, msg=partial("{}: {}".format, name))
        greatest[name] = float((output - expected).abs().max())
    one_stream = calls["one stream"]()
    for i in range(N_REPEATS):
        if not torch.equal(calls["nimble"](), one_stream):
            raise AssertionError(f"call {i} of nimble differs from one stream in its bits")
    return greatest


def report(example: Example, seconds: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """Prints times and how often nimble fits into each; the ratios."""
    gains = {name: ratios(seconds[name], seconds["nimble"]) for name in seconds if name != "nimble"}
    times = [[name, Spread.of(samples).milliseconds()] for name, samples in seconds.items()]
    rows = [[f"{name} / nimble", ratio.ratio()] for name, ratio in gains.items()]
    print_table(f"A call of {example.title}", ["", "median (least to greatest)"], [times, rows])
    return gains


def measure(example: Example, args: argparse.Namespace) -> dict[str, Any]:
    """Checks and times one model; what came out.

    Raises:
        AssertionError: an output is wrong.
    """
    torch.compiler.reset()
    with torch.no_grad():
        calls = contenders(example)
        differences = check(calls)
        seconds = interleaved_seconds(calls, args.rounds, args.calls)
    states = [(p.name, p.status.frozen, p.status.reason) for p in nimble_fx.programs()]
    return {
        "model": example.title,
        "programs": states,
        "max_difference": differences,
        "seconds": {name: Spread.of(samples) for name, samples in seconds.items()},
        "over_nimble": report(example, seconds),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if an output is wrong or a program is not frozen on a GPU; 2 without a GPU."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", choices=NASNET_NAMES, default=["mobile"])
    options.add_argument("--size", type=int, help="height and width of images; the paper's if none")
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--calls", type=int, default=10, help="timed calls of each in a round")
    options.add_argument("--on-cpu", action="store_true", help="try the command without a GPU")
    args = options.parse_args(argv)
    if not (torch.cuda.is_available() or args.on_cpu):
        console().print("No CUDA device: there is nothing to give evidence of.")
        return 2
    try:
        results = [measure(nasnet(name, args.size), args) for name in args.models]
    except AssertionError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        console().print("No GPU: nothing was frozen, and this is no evidence. Nothing is written.")
        return 2
    finish("evidence", args, {"models": results})
    frozen = [is_frozen for result in results for _, is_frozen, _ in result["programs"]]
    return 0 if frozen and all(frozen) else 1


if __name__ == "__main__":
    sys.exit(main())
