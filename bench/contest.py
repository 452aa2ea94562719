"""One row of a comparison: contestants on one model, checked against eager, then timed in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from math import ceil
from time import perf_counter

import torch
from torch import Tensor, nn

import nimble_fx
from bench.accuracy import InaccurateError, Reference, double, in_double
from bench.floor import Floor, floor
from bench.models.model import Form, Inputs, Model
from bench.peers import Compile, Run
from bench.rows import Result, Row, Schedule
from bench.task_times import TimedTasks
from bench.timing import Call, interleaved_seconds, synchronize
from nimble_fx.ir import dtype_name

N_SETS = 3
"""Sets of inputs, which each contestant is checked with and takes in turn."""

SAMPLE_SECONDS = 0.05
"""A sample is of as many calls as take eager about so long."""

MAX_CALLS = 100

MANY_CONTESTANTS = 64
"""How often Dynamo may compile one piece of code: once for each contestant."""


@dataclass(frozen=True)
class Contest:
    """What the contestants are to do.

    Attributes:
        model: of the zoo.
        form: one of its forms.
        batch: the batch size.
        training: forward, loss and backward; else the forward alone.
        device: where.
        rounds: samples of each contestant.
    """

    model: Model
    form: Form
    batch: int
    training: bool
    device: torch.device
    rounds: int

    @property
    def title(self) -> str:
        """What a person calls it: "GoogLeNet, 224 x 224, batch 1"."""
        return f"{self.model.title}, {self.form.title}, batch {self.batch}"


@dataclass(frozen=True)
class Step:
    """One iteration, as any contestant runs it.

    Attributes:
        form: the model's form, for its loss.
        training: whether there is a backward.
    """

    form: Form
    training: bool

    def __call__(self, model: nn.Module, run: Run, inputs: Inputs) -> tuple[Tensor, ...]:
        """The output; in training, the gradients too.

        Args:
            model: whose parameters have gradients.
            run: the contestant.
            inputs: one set.
        """
        if not self.training:
            with torch.no_grad():
                return (run(*inputs),)
        output = run(*inputs)
        parameters = [p for p in model.parameters() if p.requires_grad]
        return output.detach(), *torch.autograd.grad(self.form.loss(output), parameters)

    def reference(self, model: nn.Module, inputs: Inputs) -> Reference:
        """What the iteration should compute."""
        copied = double(model)
        exact = self(copied, copied, tuple(map(in_double, inputs)))
        return Reference(self(model, model, inputs), exact)


def hold(contest: Contest, contestants: Mapping[str, Compile]) -> Row:
    """Prepares, checks and times the contestants; a contestant that fails is a result that says so.

    "eager" must be one of them.
    """
    torch.compiler.reset()
    torch.manual_seed(0)
    step = Step(contest.form, contest.training)
    model = contest.form.build().to(contest.device).train(contest.training)
    sets = [_inputs(contest) for _ in range(N_SETS)]
    with torch._dynamo.config.patch(recompile_limit=MANY_CONTESTANTS):
        runs, results, schedules = _prepared(step, model, sets, contestants)
        calls = {name: _call(step, model, run, sets) for name, run in runs.items()}
        for name, samples in _timed(calls, contest).items():
            results[name] = replace(results[name], samples=samples)
        floor_of_tasks = _floor(step, model, sets[0])
    return Row(
        model=contest.model.name,
        title=contest.title,
        batch=contest.batch,
        inputs=[_described(x) for x in sets[0]],
        n_parameters=sum(p.numel() for p in model.parameters()),
        floor=floor_of_tasks,
        schedules=schedules,
        results=results,
    )


def _inputs(contest: Contest) -> Inputs:
    return tuple(x.to(contest.device) for x in contest.form.inputs(contest.batch))


def _prepared(
    step: Step, model: nn.Module, sets: Sequence[Inputs], contestants: Mapping[str, Compile]
) -> tuple[dict[str, Run], dict[str, Result], list[Schedule]]:
    """Those that are right, how each did so far, and what nimble_fx made of the model."""
    references = [step.reference(model, inputs) for inputs in sets]
    _check_that_inputs_matter(references)
    runs: dict[str, Run] = {}
    results: dict[str, Result] = {}
    schedules: list[Schedule] = []
    for name, compile_ in contestants.items():
        known = len(nimble_fx.programs())
        try:
            start = perf_counter()
            run = compile_(model, sets[0])
            step(model, run, sets[0])
            synchronize()
            first_seconds = perf_counter() - start
            distance = _distance(step, model, run, sets, references)
        except Exception as error:  # whatever a contestant raises is its result
            results[name] = Result(error=f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            runs[name] = run
            results[name] = Result(None, first_seconds, distance)
        schedules += _schedules(name, known)
    return runs, results, schedules


def _check_that_inputs_matter(references: Sequence[Reference]) -> None:
    """Else any contestant that returns what it returned before would pass.

    Raises:
        InaccurateError: two sets of inputs give the same output.
    """
    outputs = [reference.eager[0] for reference in references]
    for one, other in pairwise(outputs):
        if torch.allclose(one, other):
            raise InaccurateError("eager's output is the same for different inputs")


def _distance(
    step: Step,
    model: nn.Module,
    run: Run,
    sets: Sequence[Inputs],
    references: Sequence[Reference],
) -> float:
    """The greatest distance from the exact results over all sets of inputs, twice around."""
    pairs = [*zip(sets, references, strict=True)] * 2
    return max(reference.check(step(model, run, inputs)) for inputs, reference in pairs)


def _schedules(policy: str, known: int) -> list[Schedule]:
    """What nimble_fx has made since it knew that many programs."""
    return [
        Schedule(
            policy=policy,
            program=program.name,
            n_tasks=len(program.graph.launching),
            n_streams=program.graph.n_streams,
            n_waits=program.graph.n_waits,
            frozen=program.status.frozen,
        )
        for program in nimble_fx.programs()[known:]
    ]


def _call(step: Step, model: nn.Module, run: Run, sets: Sequence[Inputs]) -> Call:
    """A call with the next set of inputs."""
    endless = cycle(sets)
    return lambda: step(model, run, next(endless))


def _timed(calls: Mapping[str, Call], contest: Contest) -> dict[str, list[float]]:
    start = perf_counter()
    calls["eager"]()
    synchronize()
    n_calls = ceil(SAMPLE_SECONDS / (perf_counter() - start))
    return interleaved_seconds(
        calls, contest.rounds, min(n_calls, MAX_CALLS), device=contest.device
    )


def _floor(step: Step, model: nn.Module, inputs: Inputs) -> Floor:
    timed = TimedTasks()
    step(model, torch.compile(model, backend=timed), inputs)
    return floor(timed.graphs)


def _described(x: Tensor) -> str:
    return f"{dtype_name(x.dtype)}{list(x.shape)}"
