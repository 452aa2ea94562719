"""One command for a machine with a GPU: the tests that need one, then as much as fits of the rest.

Each step is a process of its own with a share of the time, the most telling models first; it writes
as it goes, so that what is cut short leaves its results. Nothing is needed but this repository and
a Python with PyTorch, pytest and hypothesis.
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
"""Where several streams should gain most, and SqueezeNet and ResNet, where they have lost."""

TRAINED = ("resnet50", "mobilenet_v2", "efficientnet_b0", "googlenet", "ensemble_8", "lstm_stack")
"""Those that Nimble's paper trains, and some with wide backwards."""

GPU_TESTS = ("--continue-on-collection-errors", "--ignore=tests/bench", "-vv", "--tb=short")
"""A file that cannot be imported costs its own tests alone; a test that hangs is seen by name."""

MOST_JOBS = 8
"""Models that share a GPU's memory and a machine's; what of them is not timed in time is lost."""

LAST_SECONDS = 20.0
"""What a step with `--minutes` has for its imports and its last timing."""

MIN_SECONDS = 30.0
"""What a step needs at least: PyTorch takes some to import."""

ROOT = Path(__file__).parent.parent
TAIL = 2000
"""How much of what a step printed is kept, in characters."""


@dataclass(frozen=True)
class Step:
    """A command and its share of the time.

    Attributes:
        name: what it is called.
        arguments: of `python -m`.
        share: of the time that is left when it begins, the most that it may take.
        takes_minutes: whether its command has the option `--minutes`.
    """

    name: str
    arguments: Sequence[str]
    share: float
    takes_minutes: bool = False

    def within(self, seconds: float) -> list[str]:
        """The arguments for a run of so many seconds."""
        minutes = max(0.0, seconds - LAST_SECONDS) / 60
        return [*self.arguments, *(("--minutes", f"{minutes:.3f}") if self.takes_minutes else ())]


@dataclass(frozen=True)
class Outcome:
    """How a step went.

    Attributes:
        status: "passed", "failed", "cut short", or "not reached".
        printed: the end of what it printed.
    """

    name: str
    status: str
    seconds: float
    printed: str = ""


def steps(out: Path, device: str) -> Iterator[Step]:
    """What is run, in order."""
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
    # those of bench take minutes, for what is measured below
    tests = ("pytest", "-m", "gpu", "-p", "no:cacheprovider", *GPU_TESTS)
    yield Step("tests", tests, 0.35)
    yield Step(
        "inference", (*inference, "--peers", *usual, "--models", *models), 0.5, takes_minutes=True
    )
    yield Step("rivals", (*inference, *rivals, "--models", *models), 0.4, takes_minutes=True)
    yield Step("overhead", ("bench.overhead", *to, "--calls", "2000"), 0.3)
    simulation = ("bench.simulation", *here, "--rounds", "5", "--models", *models)
    yield Step("simulation", simulation, 0.25)
    trained = (*training, "--peers", *usual, "--models", *TRAINED)
    yield Step("training", trained, 0.4, takes_minutes=True)
    yield Step("memory", ("bench.memory", *here, "--models", *models), 0.4)
    yield Step("autotuned", (*inference, *autotuned, "--models", *TELLING), 1.0, takes_minutes=True)


def run(step: Step, seconds: float) -> Outcome:
    """Runs a step; what it prints is shown as it comes."""
    say(f"{step.name}: at most {seconds:.0f} s")
    start = monotonic()
    command = [sys.executable, "-m", *step.within(seconds)]
    pipe = subprocess.PIPE
    printed: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        timer = Timer(seconds, _kill_session, (process.pid,))  # what it has started too
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                printed.append(line)
            process.wait()
        finally:
            timer.cancel()
            _kill_session(process.pid)  # interrupted, or workers that outlive the command
    status = "passed" if process.returncode == 0 else "failed"
    if process.returncode == -SIGKILL:
        status = "cut short"
    return Outcome(step.name, status, monotonic() - start, "".join(printed)[-TAIL:])


def _kill_session(leader: int) -> None:
    """Kills all processes of a session, in whatever groups they are."""
    with suppress(ProcessLookupError):
        killpg(leader, SIGKILL)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):  # it has ended
            if getsid(int(entry.name)) == leader:
                kill(int(entry.name), SIGKILL)


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if a step failed or the tests did not pass; 2 without a GPU: there is no evidence."""
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
        seconds = step.share * (end - monotonic())
        enough = seconds >= MIN_SECONDS
        outcomes.append(run(step, seconds) if enough else Outcome(step.name, "not reached", 0))
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
