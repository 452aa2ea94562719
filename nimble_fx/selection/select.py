"""Selects the schedules of a program by the user's policy, proves them and emits their text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nimble_fx.codegen.emit import emit
from nimble_fx.cost import CostModel
from nimble_fx.cost.measured import Measured
from nimble_fx.cost.roofline import Roofline
from nimble_fx.errors import FileError, ScheduleError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.passes.critical_path import CriticalPath
from nimble_fx.pipeline import Pass, Policy, describe_pass, passes_for, schedule
from nimble_fx.selection.candidate import Candidate
from nimble_fx.selection.schedule_cache import ScheduleCache
from nimble_fx.selection.search_space import ScheduledCandidate, scheduled_candidates
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.serialization.document import absolute
from nimble_fx.verify import verify, verify_source

N_TIMED = 5
"""How many of the best candidates by simulation are timed, besides the serial one."""


@dataclass(frozen=True)
class Selection:
    """The selected schedules of a program.

    Attributes:
        schedules: with their texts, all proved; several are to be autotuned, and until then the
            first one runs.
        candidates: what "auto" selected from, those of `schedules` first and in their order; empty
            with another policy, and for a schedule from `cache_dir`.
        on_winner: called with the winner of autotuning, if there are several schedules.
    """

    schedules: tuple[ScheduledProgram, ...]
    candidates: tuple[Candidate, ...] = ()
    on_winner: Callable[[ScheduledProgram], None] | None = None


def select_schedules(
    program: TracedProgram, options: Options, reporter: Reporter, *, frozen: bool, timed: bool
) -> Selection:
    """Selects schedules by the user's policy, or the serial one if these are not legal.

    Args:
        program: the traced program.
        options: the user's options.
        reporter: lists the fallback if a schedule is not legal; warns of errors with `cache_dir`.
        frozen: whether the program will be captured; else the host calls each operator.
        timed: whether several captures can be autotuned on this machine.

    Raises:
        ScheduleError: the serial schedule is not legal either.
    """
    name = program.graph.name
    selector = _Selector(program, options, reporter)
    try:
        if options.policy == "auto":
            return selector.auto(frozen, timed)
        return selector.by_policy(options.policy)
    except ScheduleError as error:
        serial = selector.serial()
        reporter.report(_illegal_schedule(name, options.policy, error))
        return serial
    except UnsupportedError as error:
        serial = selector.serial()
        if options.policy != "auto" or (frozen and selector.n_queues > 1):  # else nothing is lost
            reason = f"the costs of its tasks cannot be predicted: {error}"
            reporter.report(Fallback(name, "on one stream", reason, error.node, error.source))
        return serial


def predicted_us(program: TracedProgram, options: Options, reporter: Reporter) -> float:
    """What the fastest schedule of a program is predicted to take when it is replayed.

    Raises:
        UnsupportedError: a size is not known.
    """
    costs = Roofline(program.specs, program.sizes)
    best, *_ = _Selector(program, options, reporter).candidates(costs, frozen=True, timed=False)
    return best.candidate.predicted_us


def _illegal_schedule(name: str, policy: Policy | str, error: ScheduleError) -> Fallback:
    if isinstance(policy, str):
        return Fallback.caused_by(error, name, "on one stream")
    reason = f"the schedule of policy {policy.name} is not legal: {error}"
    return Fallback(name, "on one stream", reason)


class _Selector:
    """Schedules one program by each policy."""

    def __init__(self, program: TracedProgram, options: Options, reporter: Reporter) -> None:
        self._program, self._options, self._reporter = program, options, reporter
        self._graph = program.graph
        limits = [n for n in (options.max_streams, program.device.stream_limit) if n is not None]
        self._limit = min(limits, default=None)
        self._cache: ScheduleCache | None = None
        if options.cache_dir is not None:
            directory = absolute(options.cache_dir)
            self._cache = ScheduleCache(directory, reporter.warn)

    def auto(self, frozen: bool, timed: bool) -> Selection:
        """The fastest schedule by prediction, or several to be autotuned."""
        program = self._program
        entry = None
        if self._cache is not None:
            measured = self._options.cost_dir is not None
            depends_on = ["auto", f"{self.n_queues=}, {frozen=}, {timed=}, {measured=}"]
            depends_on += [f"{self._options.priorities=}", *self._size_hints]
            entry = self._cache.entry(program, depends_on, max_streams=self.n_queues)
            known = entry.find()
            if known is not None:
                return Selection((known,))
        found = self.candidates(self._costs(), frozen=frozen, timed=timed)
        selected = timed_candidates(found) if timed else found[:1]
        others = [each for each in found if each not in selected]
        schedules = [self._emitted(each.graph) for each in selected]
        candidates = [each.candidate for each in (*selected, *others)]
        candidates[0] = replace(candidates[0], chosen=True)
        on_winner = None if entry is None else entry.store
        if on_winner is not None and len(schedules) == 1:
            on_winner(schedules[0])
        return Selection(tuple(schedules), tuple(candidates), on_winner)

    def candidates(
        self, costs: CostModel, *, frozen: bool, timed: bool
    ) -> list[ScheduledCandidate]:
        """The candidates of "auto" by a cost model, the fastest by prediction first."""
        return scheduled_candidates(
            self._graph,
            costs,
            self.n_queues,
            self._program.sizes,
            frozen=frozen,
            timed=timed,
            priorities=self._options.priorities,
        )

    def by_policy(self, policy: Policy | Literal["critical-path"]) -> Selection:
        """The schedule by one policy, from `cache_dir` if it is there."""
        if policy == "critical-path":
            policy = CriticalPath(self._costs(), self.n_queues, self._options.priorities)
        pipeline = passes_for(policy, self._limit)
        if self._cache is None:
            return Selection((self._scheduled(pipeline),))
        described = [describe_pass(step) for step in pipeline]
        by_cost = isinstance(policy, CriticalPath)
        depends_on = [*described, *(self._size_hints if by_cost else ())]
        entry = self._cache.entry(self._program, depends_on, described, self._limit)
        known = entry.find()
        if known is None:
            known = self._scheduled(pipeline)
            entry.store(known)
        return Selection((known,))

    def serial(self) -> Selection:
        """The schedule on one stream."""
        return Selection((self._scheduled(passes_for("serial", None)),))

    @property
    def n_queues(self) -> int:
        """The number of streams that run at the same time."""
        n_queues = self._program.specs.max_streams
        return n_queues if self._limit is None else min(n_queues, self._limit)

    @property
    def _size_hints(self) -> list[str]:
        """The size hints that costs depend on, as texts."""
        return [f"{name}={size}" for name, size in sorted(self._program.sizes.items())]

    def _costs(self) -> CostModel:
        """The cost model: measured times if there is a `cost_dir`, else a roofline."""
        program, directory = self._program, self._options.cost_dir
        if directory is not None:
            path = absolute(directory)
            try:
                measured = Measured.of(self._graph, program.device, path, program.sizes)
            except FileError as error:
                self._reporter.warn(f"cost_dir: {error}")
            else:
                if measured.failed and not measured.times:
                    reason = next(iter(measured.failed.values()))
                    self._reporter.warn(f"cost_dir: nothing could be measured: {reason}")
                return measured
        return Roofline(program.specs, program.sizes)

    def _scheduled(self, pipeline: Sequence[Pass]) -> ScheduledProgram:
        """The schedule that passes make of the program, with its text, both proved.

        Raises:
            ScheduleError: the schedule or its text is not legal, or it has too many streams.
        """
        return self._emitted(schedule(self._graph, pipeline))

    def _emitted(self, scheduled: TaskGraph) -> ScheduledProgram:
        """A schedule with its text, both proved legal unless the option `verify` is off."""
        limit, policy = self._limit, self._options.policy
        if limit is not None and scheduled.n_streams > limit:
            raise ScheduleError(f"it has {scheduled.n_streams} streams, of at most {limit}")
        proved = self._options.verify or not isinstance(policy, str)  # a user's pass: always
        if proved:
            verify(scheduled, self._graph)
        source = emit(scheduled)
        if proved:
            verify_source(source, scheduled)
        return self._program.scheduled(scheduled, source)


def timed_candidates(found: Sequence[ScheduledCandidate]) -> list[ScheduledCandidate]:
    """The best candidates by prediction and the serial one, in their order, without duplicates."""
    timed: list[ScheduledCandidate] = [each for each in found if each.candidate.policy == "serial"]
    for each in found:
        if len(timed) <= N_TIMED and not any(_same_schedule(each, other) for other in timed):
            timed.append(each)
    return [each for each in found if each in timed]


def _same_schedule(one: ScheduledCandidate, other: ScheduledCandidate) -> bool:
    return (one.graph.tasks, one.graph.urgent) == (other.graph.tasks, other.graph.urgent)
