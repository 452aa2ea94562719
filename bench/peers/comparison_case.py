"""One row of a comparison: checks contestants on one model against eager, times them in turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from time import perf_counter

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

import nimble_fx
from bench.measuring.accuracy import InaccurateError, Reference, double, in_double
from bench.measuring.lower_bound import Floor, floor
from bench.measuring.task_times import TimedTasks
from bench.measuring.timing import Call, calls_per_sample, interleaved_seconds, synchronize
from bench.models.model import Form, Inputs, Model
from bench.peers.baselines import Compile, Run
from bench.tables.rows import Result, Row, Schedule
from nimble_fx.errors import one_line
from nimble_fx.frontend.models.model_function import unique_function
from nimble_fx.ir.types import dtype_name

N_SETS = 3
"""The number of sets of inputs; each contestant is checked with all and timed with each in turn."""

NO_LIMIT = 1000
"""How often Dynamo may compile one function; each contestant compiles it."""


@dataclass(frozen=True)
class Contest:
    """The task of the contestants.

    Attributes:
        model: a model of the zoo.
        form: one of its forms.
        batch: the batch size.
        training: whether to run forward, loss and backward; otherwise only the forward.
        device: the device to run on.
        rounds: the number of samples of each contestant.
    """

    model: Model
    form: Form
    batch: int
    training: bool
    device: torch.device
    rounds: int

    @property
    def title(self) -> str:
        """Its title, such as "GoogLeNet, 224 x 224, batch 1"."""
        return f"{self.model.title}, {self.form.title}, batch {self.batch}"


@dataclass(frozen=True)
class Step:
    """One iteration, the same for all contestants.

    Attributes:
        form: the model's form, for its loss.
        training: whether there is a backward.
    """

    form: Form
    training: bool

    def __call__(self, model: nn.Module, run: Run, inputs: Inputs) -> tuple[Tensor, ...]:
        """The output; in training, the gradients too.

        Args:
            model: the model, whose parameters have gradients.
            run: the contestant.
            inputs: one set of inputs.
        """
        if not self.training:
            with torch.no_grad():
                return (run(*inputs).detach(),)
        output = run(*inputs)
        parameters = [p for p in model.parameters() if p.requires_grad]
        return output.detach(), *torch.autograd.grad(self.form.loss(output), parameters)

    def reference(self, model: nn.Module, inputs: Inputs) -> Reference:
        """The expected results of the iteration."""
        copied = double(model)
        exact = self(copied, copied, tuple(map(in_double, inputs)))
        return Reference(self(model, model, inputs), exact)


@dataclass(frozen=True)
class Case:
    """A built model, its inputs, and its expected results.

    Attributes:
        step: the iteration.
        model: the model, on its device and in its mode.
        sets: the sets of inputs.
        references: the expected results for each set.
    """

    step: Step
    model: nn.Module
    sets: Sequence[Inputs]
    references: Sequence[Reference]

    @staticmethod
    def of(contest: Contest) -> "Case":
        """Builds the case, with the same weights and inputs each time.

        Raises:
            InaccurateError: the model returns the same for different inputs, so that the check
                would miss a contestant that repeats an earlier result.
        """
        torch.manual_seed(0)
        step = Step(contest.form, contest.training)
        model = contest.form.build().to(contest.device).train(contest.training)
        drawn = [contest.form.inputs(contest.batch) for _ in range(N_SETS)]
        sets = [tuple(x.to(contest.device) for x in inputs) for inputs in drawn]
        references = [step.reference(model, inputs) for inputs in sets]
        for one, other in pairwise(reference.eager[0] for reference in references):
            if torch.allclose(one, other):
                raise InaccurateError(f"{contest.title}: different inputs, same output")
        return Case(step, model, sets, references)

    def run(self, run: Run, i: int) -> tuple[Tensor, ...]:
        """Runs one iteration of a contestant with one of the sets."""
        return self.step(self.model, run, self.sets[i])

    def endless(self, run: Run) -> Call:
        """A function that runs an iteration with the next set."""
        order = cycle(range(N_SETS))
        return lambda: self.run(run, next(order))


def hold(
    contest: Contest,
    contestants: Mapping[str, Compile],
    wait_for_turn: Callable[[], None] = lambda: None,
) -> Row:
    """Prepares, checks and times the contestants; results record failures.

    Args:
        contest: their task.
        contestants: the contestants by name; "eager" must be one of them.
        wait_for_turn: called when all are prepared and checked; timing begins when it returns.
    """
    # Beyond the limit, as with a graph break, Dynamo would silently run eager.
    with torch._dynamo.config.patch(recompile_limit=NO_LIMIT, fail_on_recompile_limit_hit=True):
        try:
            return _held(contest, contestants, wait_for_turn)
        except Exception as error:  # the next model may do better
            return failed(contest, one_line(error))


def _held(
    contest: Contest, contestants: Mapping[str, Compile], wait_for_turn: Callable[[], None]
) -> Row:
    torch.compiler.reset()
    case = Case.of(contest)
    runs: dict[str, Run] = {}
    results: dict[str, Result] = {}
    schedules: list[Schedule] = []
    for name, compile_ in contestants.items():
        known = len(nimble_fx.programs())
        results[name], run = _first_calls(case, compile_)
        runs |= {} if run is None else {name: run}
        schedules += _schedules(name, known)
    calls = {name: case.endless(run) for name, run in runs.items()}
    wait_for_turn()
    for name, samples in _timed(calls, contest).items():
        results[name] = _last_calls(case, runs[name], results[name], samples)
    floor_of_tasks, floor_error = _floor(case)
    return Row(
        model=contest.model.name,
        title=contest.title,
        batch=contest.batch,
        inputs=[_described(x) for x in case.sets[0]],
        n_parameters=sum(p.numel() for p in case.model.parameters()),
        floor=floor_of_tasks,
        floor_error=floor_error,
        schedules=schedules,
        results=results,
    )


def failed(contest: Contest, error: str) -> Row:
    """The row of a model that does not run in eager, or whose timing was aborted."""
    return Row(
        model=contest.model.name,
        title=contest.title,
        batch=contest.batch,
        inputs=[],
        n_parameters=contest.model.n_parameters,
        floor=None,
        floor_error=error,
        schedules=[],
        results={"eager": Result(error)},
    )


def _first_calls(case: Case, compile_: Compile) -> tuple[Result, Run | None]:
    """Times and checks each contestant's first call; None for one that failed."""
    try:
        skipped = _skipped_cuda_graphs()
        start = perf_counter()
        run = compile_(case.model, case.sets[0])
        case.run(run, 0)
        synchronize()
        first_seconds = perf_counter() - start
        distance, same_bits = _check(case, run)
    except Exception as error:  # any error of a contestant is its result
        cause = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
        return Result(error=one_line(cause)), None
    skipped = _skipped_cuda_graphs() - skipped
    note = f"PyTorch made no CUDA graph of {skipped} of its graphs" if skipped else None
    return Result(None, note, first_seconds, distance, same_bits), run


def _skipped_cuda_graphs() -> int:
    """How often PyTorch has run a graph uncaptured that should be a CUDA graph."""
    return int(counters["inductor"]["cudagraph_skips"])


def _last_calls(case: Case, run: Run, result: Result, samples: Sequence[float]) -> Result:
    """The result with its times, after the contestant is checked again."""
    try:
        _, same_bits = _check(case, run)
    except Exception as error:
        return Result(error=f"after it was timed: {one_line(error)}")
    return replace(result, samples=samples, same_bits=result.same_bits and same_bits)


def _check(case: Case, run: Run) -> tuple[float, bool]:
    """The distance of results from float64's, and whether all equal eager's bit by bit.

    Checks all sets twice, to notice a contestant that repeats an earlier result. Each result is
    checked before the next call, which may overwrite it.

    Raises:
        InaccurateError: a result is too far from float64's.
    """
    distance, same_bits = 0.0, True
    for i in [*range(N_SETS)] * 2:
        results, reference = case.run(run, i), case.references[i]
        distance = max(distance, reference.check(results))
        same_bits &= all(map(torch.equal, results, reference.eager))
    return distance, same_bits


def _schedules(policy: str, known: int) -> list[Schedule]:
    """The schedules that nimble_fx has made since there were that many programs."""
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


def _timed(calls: Mapping[str, Call], contest: Contest) -> dict[str, list[float]]:
    n_calls = calls_per_sample(calls["eager"])
    return interleaved_seconds(calls, contest.rounds, n_calls, device=contest.device)


def _floor(case: Case) -> tuple[Floor | None, str | None]:
    """Measures the floor; returns why not if that fails."""
    timed = TimedTasks()
    try:
        case.run(torch.compile(unique_function(case.model), backend=timed), 0)
    except Exception as error:  # an operator that a GPU cannot capture must not lose the row
        return None, one_line(error)
    if not any(seconds for _, seconds in timed.graphs):
        return None, "no task was timed"
    return floor(timed.graphs), None


def _described(x: Tensor) -> str:
    return f"{dtype_name(x.dtype)}{list(x.shape)}"
