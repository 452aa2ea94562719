"""What a call costs: nimble against eager PyTorch, and against aot_eager, which only traces.

Each round times a few calls of each, in rotating order, and forms the ratios; the figure is the
median over the rounds. On a GPU nimble's calls replay a CUDA graph; on a CPU streams do nothing,
so that nimble / aot_eager shows what the emitted module and its launcher add to the same operators.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

import torch

from bench.models.examples import NASNET_NAMES, Example, nasnet
from bench.record import Target, finish, parser
from bench.screen import console, print_table
from bench.timing import Spread, interleaved_seconds, ratios

AOT_EAGER_TARGET = 1.03
EAGER_TARGET = 1.0

Seconds = Mapping[str, Sequence[float]]


def compiled_calls(example: Example) -> dict[str, Callable[[], object]]:
    """A call by eager, aot_eager and nimble each, compiled, warm, and equal to eager's.

    Raises:
        AssertionError: a backend's output differs from eager's.
    """
    torch.compiler.reset()
    calls: dict[str, Callable[[], object]] = {"eager": example.run}
    expected = example.run()
    for backend in ("aot_eager", "nimble"):
        compiled = torch.compile(example.model, backend=backend)
        calls[backend] = lambda compiled=compiled: compiled(example.x)  # type: ignore[misc]
        torch.testing.assert_close(calls[backend](), expected)
    for call in calls.values():
        for _ in range(3):
            call()
    return calls


def report(example: Example, seconds: Seconds, against: Mapping[str, Spread]) -> None:
    """Prints milliseconds a call and the ratios."""
    times = [[name, Spread.of(samples).milliseconds()] for name, samples in seconds.items()]
    rows = [[f"nimble / {name}", ratio.ratio()] for name, ratio in against.items()]
    print_table(f"A call of {example.title}", ["", "median (least to greatest)"], [times, rows])
    console().print(f"torch threads: {torch.get_num_threads()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, writes; 0."""
    options = parser(__doc__)
    options.add_argument("--model", choices=NASNET_NAMES, default="mobile")
    options.add_argument("--size", type=int, default=32, help="height and width of the images")
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--calls", type=int, default=5, help="timed calls of each in a round")
    args = options.parse_args(argv)

    example = nasnet(args.model, args.size, args.batch)
    with torch.no_grad():
        seconds = interleaved_seconds(compiled_calls(example), args.rounds, args.calls)
    against = {name: ratios(seconds["nimble"], seconds[name]) for name in ("aot_eager", "eager")}
    report(example, seconds, against)
    results = {
        "model": example.title,
        "seconds": {name: Spread.of(samples) for name, samples in seconds.items()},
        "nimble_over": against,
    }
    targets = [
        Target("nimble / aot_eager", against["aot_eager"].median, AOT_EAGER_TARGET),
        Target("nimble / eager", against["eager"].median, EAGER_TARGET, strict=True),
    ]
    finish("call_time", args, results, targets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
