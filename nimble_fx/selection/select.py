"""Which schedule a program gets: what policies make of it, the best of that, proved and written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
from nimble_fx.selection.search_space import Proposal, proposals
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.verify import verify, verify_source

N_TIMED = 5
"""So many of the best by simulation are timed on a device, beside the serial one."""


@dataclass(frozen=True)
class Selection:
    """The schedules that a program may run by.

    Attributes:
        schedules: each with its text, all proved; the first is the one to run until they have been
            timed.
        candidates: what "auto" had to select from, those of `schedules` first and in their order;
            none with another policy, nor for what was taken from `cache_dir`.
        on_winner: receives the schedule that has won, if several are to be timed.
    """

    schedules: tuple[ScheduledProgram, ...]
    candidates: tuple[Candidate, ...] = ()
    on_winner: Callable[[ScheduledProgram], None] | None = None


def select(
    program: TracedProgram, options: Options, reporter: Reporter, *, frozen: bool, timed: bool
) -> Selection:
    """The schedules by the user's policy; the serial one if none of that is legal.

    Args:
        program: what is to be scheduled.
        options: the user's.
        reporter: is told of schedules that are not legal, and of what is wrong with `cache_dir`.
        frozen: whether it is to be captured; else the host calls operator after operator.
        timed: whether several captures can be timed, here, before one is decided on.

    Raises:
        ScheduleError: the serial schedule is not legal either.
    """
    name = program.traced.graph.name
    chooser = _Selector(program, options, reporter)
    try:
        return (
            chooser.best(frozen, timed) if options.policy == "auto" else chooser.by(options.policy)
        )
    except ScheduleError as error:
        serial = chooser.serial()
        reporter.report(illegal_schedule(name, "on one stream", error, options.policy))
        return serial
    except UnsupportedError as error:
        serial = chooser.serial()
        if options.policy != "auto" or (frozen and chooser.n_queues > 1):  # else nothing is lost
            reason = f"what its tasks take cannot be told: {error}"
            reporter.report(Fallback(name, "on one stream", reason, error.node, error.source))
        return serial


def illegal_schedule(
    name: str, runs: str, error: ScheduleError, policy: Policy | str = "auto"
) -> Fallback:
    """What to say of a program whose schedule is not legal."""
    if not isinstance(policy, str):
        return Fallback(name, runs, f"the schedule of policy {policy.name} is not legal: {error}")
    bug = "its schedule is not legal. This is a bug in nimble_fx, please report it"
    return Fallback(name, runs, f"{bug}: {error}")


class _Selector:
    """Makes the schedules of one program."""

    def __init__(self, program: TracedProgram, options: Options, reporter: Reporter) -> None:
        self._program, self._options, self._reporter = program, options, reporter
        self._graph = program.traced.graph
        limits = [n for n in (options.max_streams, program.device.max_streams) if n is not None]
        self._limit = min(limits, default=None)
        self._cache: ScheduleCache | None = None
        if options.cache_dir is not None:
            directory = Path(options.cache_dir).expanduser().absolute()
            self._cache = ScheduleCache(directory, reporter.warn)

    def best(self, frozen: bool, timed: bool) -> Selection:
        """What is predicted to take least; with the next best, if they are to be timed."""
        program = self._program
        entry = None
        if self._cache is not None:
            measured = self._options.cost_dir is not None
            made_by = ["auto", f"{self.n_queues=}, {frozen=}, {timed=}, {measured=}"]
            made_by += [f"{self._options.priorities=}", *self._known_sizes]
            entry = self._cache.entry(program, made_by, max_streams=self.n_queues)
            known = entry.find()
            if known is not None:
                return Selection((known,))
        costs, sizes = self._costs(), program.sizes
        found = proposals(
            self._graph,
            costs,
            self.n_queues,
            sizes,
            frozen=frozen,
            timed=timed,
            priorities=self._options.priorities,
        )
        running = worth_timing(found) if timed else found[:1]
        others = [each for each in found if each not in running]
        schedules = [self._emitted(each.graph) for each in running]
        candidates = [each.candidate for each in (*running, *others)]
        candidates[0] = replace(candidates[0], chosen=True)
        on_winner = None if entry is None else entry.keep
        if on_winner is not None and len(schedules) == 1:
            on_winner(schedules[0])
        return Selection(tuple(schedules), tuple(candidates), on_winner)

    def by(self, policy: Policy | Literal["critical-path"]) -> Selection:
        """The schedule by a policy; from `cache_dir` if it is there."""
        if policy == "critical-path":
            policy = CriticalPath(self._costs(), self.n_queues, self._options.priorities)
        pipeline = passes_for(policy, self._limit)
        if self._cache is None:
            return Selection((self._made(pipeline),))
        described = [describe_pass(step) for step in pipeline]
        by_cost = isinstance(policy, CriticalPath)
        made_by = [*described, *(self._known_sizes if by_cost else ())]
        entry = self._cache.entry(self._program, made_by, described, self._limit)
        known = entry.find()
        if known is None:
            known = self._made(pipeline)
            entry.keep(known)
        return Selection((known,))

    def serial(self) -> Selection:
        """The schedule on one stream."""
        return Selection((self._made(passes_for("serial", None)),))

    @property
    def n_queues(self) -> int:
        """So many streams run at the same time."""
        there = self._program.specs.max_streams
        return there if self._limit is None else min(there, self._limit)

    @property
    def _known_sizes(self) -> list[str]:
        """What costs were told of symbolic sizes."""
        return [f"{name}={size}" for name, size in sorted(self._program.sizes.items())]

    def _costs(self) -> CostModel:
        """Measured, if the user has a place for that."""
        program, directory = self._program, self._options.cost_dir
        if directory is not None:
            path = Path(directory).expanduser().absolute()
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

    def _made(self, pipeline: Sequence[Pass]) -> ScheduledProgram:
        """What passes make of the program.

        Raises:
            ScheduleError: it is not legal or has too many streams, or the text is not it.
        """
        return self._emitted(schedule(self._graph, pipeline))

    def _emitted(self, scheduled: TaskGraph) -> ScheduledProgram:
        """The schedule and its text, both proved legal unless the user asked for no proof."""
        limit, policy = self._limit, self._options.policy
        if limit is not None and scheduled.n_streams > limit:
            raise ScheduleError(f"it has {scheduled.n_streams} streams, of at most {limit}")
        proved = self._options.verify or not isinstance(policy, str)  # a stranger's is not trusted
        if proved:
            verify(scheduled, self._graph)
        source = emit(scheduled)
        if proved:
            verify_source(source, scheduled)
        return self._program.scheduled(scheduled, source)


def worth_timing(found: Sequence[Proposal]) -> list[Proposal]:
    """The best by prediction and the serial one, in their order; of equal schedules one."""
    timed: list[Proposal] = [each for each in found if each.candidate.policy == "serial"]
    for each in found:
        if len(timed) <= N_TIMED and not any(_same_schedule(each, other) for other in timed):
            timed.append(each)
    return [each for each in found if each in timed]


def _same_schedule(one: Proposal, other: Proposal) -> bool:
    return (one.graph.tasks, one.graph.urgent) == (other.graph.tasks, other.graph.urgent)
