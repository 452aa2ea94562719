"""Runs the tests that need a GPU, and then as many benchmarks as fit in the time.

Each step is a process of its own with a share of the time, the most informative models first. It
writes results as it goes, so that a step which runs out of time keeps them. It only needs this
repository and a Python with PyTorch, pytest and hypothesis.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import cpu_count, getsid, kill, killpg
from pathlib import Path
from signal import SIGKILL, SIGTERM, signal
from threading import Timer
from time import monotonic

import torch

from bench.command_line.console import print_table, say
from bench.command_line.record import finish, keep, parser
from bench.models.registry import ZOO
from bench.policies import POLICIES

TELLING = (
    *("googlenet", "inception_v3", "nasnet_a_mobile", "hrnet_w18_small", "randwire_ws"),
    *("lstm_stack", "moe_shared_experts", "dlrm", "ensemble_8", "squeezenet1_1", "resnet50"),
    *("bert_base", "nasnet_a_large", "darts_v2_imagenet", "spiking_lif"),
)
"""Models that should gain most from streams, and SqueezeNet and ResNet, which have lost."""

TRAINED = ("resnet50", "mobilenet_v2", "efficientnet_b0", "googlenet", "ensemble_8", "lstm_stack")
"""Models that Nimble's paper trains, and some with wide backwards."""

GPU_TESTS = ("--continue-on-collection-errors", "--ignore=tests/bench", "-vv", "--tb=short")
"""A file that cannot be imported only loses its own tests; the name of a hanging test shows."""

MOST_JOBS = 8
"""Models to prepare at once, which share memory; those not timed in time are lost."""

LAST_SECONDS = 20.0
"""Seconds that a step with `--minutes` has for its imports and its last timing."""

MIN_SECONDS = 30.0
"""The fewest seconds of a step, whatever its share; importing PyTorch takes some."""

ROOT = Path(__file__).parent.parent
TAIL = 2000
"""The number of characters of a step's output that are kept."""


@dataclass(frozen=True)
class Step:
    """A command and its share of the time.

    Attributes:
        name: its name.
        arguments: the arguments of `python -m`.
        share: the largest part of the remaining time that it may take, beyond `MIN_SECONDS`.
        takes_minutes: whether its command has the option `--minutes`.
    """

    name: str
    arguments: Sequence[str]
    share: float
    takes_minutes: bool = False

    def seconds(self, left: float) -> float:
        """The seconds that it may take of those that are left; 0 if these are too few."""
        return max(MIN_SECONDS, self.share * left) if left >= MIN_SECONDS else 0.0

    def within(self, seconds: float) -> list[str]:
        """The arguments for a run of so many seconds."""
        minutes = max(0.0, seconds - LAST_SECONDS) / 60
        return [*self.arguments, *(("--minutes", f"{minutes:.3f}") if self.takes_minutes else ())]


@dataclass(frozen=True)
class Outcome:
    """How a step went.

    Attributes:
        status: "passed", "failed", "cut short", or "not reached".
        printed: the end of its output.
    """

    name: str
    status: str
    seconds: float
    printed: str = ""


def steps(out: Path, device: str) -> Iterator[Step]:
    """The steps, in order."""
    on_gpu = torch.device(device).type == "cuda"
    models = [*TELLING, *(name for name in ZOO if name not in TELLING)]
    to = ("--out", str(out.absolute()))
    here = (*to, "--device", device)
    usual = ("reduce-overhead", "fused") if on_gpu else ("aot_eager",)
    others = ("cudagraphs", "inductor") if on_gpu else ()
    strongest = "max-autotune" if on_gpu else "inductor"
    jobs = max(1, min(MOST_JOBS, (cpu_count() or 1) // 2)) if on_gpu else 1
    compared = (*here, "--jobs", str(jobs))
    inference, training = ("bench.inference", *compared), ("bench.training", *compared)
    rivals = ("--peers", *others, "--policies", *POLICIES, "--name", "inference_rivals")
    autotuned = ("--peers", strongest, "--name", "inference_autotuned")
    # tests of bench take minutes; the steps below measure the same
    tests = ("pytest", "-m", "gpu", "-p", "no:cacheprovider", *GPU_TESTS)
    yield Step("tests", tests, 0.35)
    yield Step(
        "inference", (*inference, "--peers", *usual, "--models", *models), 0.45, takes_minutes=True
    )
    yield Step("rivals", (*inference, *rivals, "--models", *models), 0.3, takes_minutes=True)
    overhead = ("bench.overhead", *to, "--calls", "2000", "--parameters", "300", "--rounds", "5")
    yield Step("overhead", overhead, 0.25)
    simulation = ("bench.simulation", *here, "--rounds", "5", "--models", *models)
    yield Step("simulation", simulation, 0.25, takes_minutes=True)
    trained = (*training, "--peers", *usual, "--models", *TRAINED)
    yield Step("training", trained, 0.4, takes_minutes=True)
    yield Step("memory", ("bench.memory", *here, "--models", *models), 0.4)
    yield Step("autotuned", (*inference, *autotuned, "--models", *TELLING), 1.0, takes_minutes=True)


def run(step: Step, seconds: float) -> Outcome:
    """Runs a step, and shows its output as it comes."""
    say(f"{step.name}: at most {seconds:.0f} s")
    start = monotonic()
    command = [sys.executable, "-m", *step.within(seconds)]
    pipe = subprocess.PIPE
    printed: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        timer = Timer(seconds, _kill_session, (process.pid,))  # and what it started
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                printed.append(line)
            process.wait()
        finally:
            timer.cancel()
            _kill_session(process.pid)  # interrupted, or some workers outlive the command
    status, took = "passed" if process.returncode == 0 else "failed", monotonic() - start
    if process.returncode == -SIGKILL and took >= seconds:  # sooner: it ran out of memory
        status = "cut short"
    return Outcome(step.name, status, took, "".join(printed)[-TAIL:])


def _kill_session(leader: int) -> None:
    """Kills all processes of a session, whatever their groups."""
    with suppress(ProcessLookupError):
        killpg(leader, SIGKILL)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):  # it has ended
            if getsid(int(entry.name)) == leader:
                kill(int(entry.name), SIGKILL)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if a step failed or the tests did not pass; 2 without a GPU."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=8.0, help="for all steps together")
    options.add_argument("--device", default="cuda:0", help="cpu tries the command without a GPU")
    args = options.parse_args(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        say("No CUDA device: there is nothing to give evidence of. (--device cpu tries it out.)")
        return 2
    signal(SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: no step outlives this command
    end = monotonic() + 60 * args.minutes
    keep("evidence", args, {"steps": []})  # now, if it cannot be written
    outcomes: list[Outcome] = []
    for step in steps(args.out, args.device):
        seconds = step.seconds(end - monotonic())
        outcomes.append(run(step, seconds) if seconds else Outcome(step.name, "not reached", 0))
        keep("evidence", args, {"steps": outcomes})
    print_table(
        "evidence",
        ["step", "", "seconds"],
        [[[each.name, each.status, f"{each.seconds:.0f}"] for each in outcomes]],
    )
    finish("evidence", args, {"steps": outcomes})
    failed = any(each.status == "failed" for each in outcomes)
    return int(failed or outcomes[0].status != "passed")


if __name__ == "__main__":
    sys.exit(main())
