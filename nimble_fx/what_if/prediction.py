"""What-if analysis: edits of a program or of a recorded run, and their predicted times."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from nimble_fx.devices.specs import DEVICES, Device, find_device, find_hardware
from nimble_fx.errors import OptionError, UnsupportedError
from nimble_fx.ir.display import plural
from nimble_fx.ir.symbolic_sizes import MAX_SIZE, Sizes, concrete, symbols_of
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import tensor_types
from nimble_fx.options import require_bool
from nimble_fx.program import Program
from nimble_fx.simulation.discrete_event import Activity, Timeline, simulate
from nimble_fx.traces import Recorded, read
from nimble_fx.what_if import edits
from nimble_fx.what_if.edits import Activities
from nimble_fx.what_if.select_activities import Select, selected
from nimble_fx.what_if.sources import ActivitySource, PlannedSource, RecordedSource

Edit = Callable[[ActivitySource, Activities], Activities]


@dataclass(frozen=True)
class Prediction:
    """The predicted time of an edited run.

    Attributes:
        baseline_us: the simulated time without edits.
        timeline: when each activity would run.
    """

    baseline_us: float
    timeline: Timeline

    @property
    def makespan_us(self) -> float:
        """The predicted end of the last activity."""
        return self.timeline.makespan_us

    @property
    def speed_up(self) -> float:
        """The time without edits divided by the predicted time."""
        if self.makespan_us:
            return self.baseline_us / self.makespan_us
        return inf if self.baseline_us else 1.0

    def __str__(self) -> str:
        compared = ""
        if self.makespan_us != self.baseline_us:
            before = f"{self.baseline_us:.1f} us"
            compared = f", {self.speed_up:.2f} times as fast as without edits ({before})"
        bound = f"{self.timeline.bound_us:.1f} us"
        return f"{self.makespan_us:.1f} us{compared}; no schedule of it goes below {bound}"


@dataclass(frozen=True)
class WhatIf:
    """A run and edits of it; each edit returns a new object.

    Daydream (Zhu et al., USENIX ATC 2020): the dependency graph of the activities is edited as an
    optimization would change it, and simulated. `on` and `streams` change the source of the
    activities, so they take effect before all other edits, whenever they are called.

    Attributes:
        source: the source of the activities.
        baseline_us: the simulated time without edits.
        activities: the edited activities, those of each queue in its order.
        edits: the edits, in order.
    """

    source: ActivitySource
    baseline_us: float
    activities: Activities
    edits: tuple[Edit, ...] = ()

    def __repr__(self) -> str:
        n = len(self.activities)
        run = f"{n} {'activity' if n == 1 else 'activities'}, {self.baseline_us:.1f} us"
        return f"<WhatIf: {run} without edits; {plural(len(self.edits), 'edit')}>"

    def predict(self) -> Prediction:
        """Simulates the edited activities."""
        return Prediction(self.baseline_us, simulate(self.activities))

    def scale(self, select: Select, factor: float) -> "WhatIf":
        """Multiplies the times of activities by a factor.

        Args:
            select: an activity's name, a glob for names, or a part of names; "compute" or "memory"
                for kernels that are bound by that; a list of such; or a predicate of an activity.
                All edits take it.
            factor: 0 for no time at all.

        Raises:
            OptionError: nothing is selected, or the factor is not a number of at least 0.
        """
        return self._with(select, lambda _, now, names: edits.scaled(now, names, factor))

    def mixed_precision(self) -> "WhatIf":
        """Scales kernels as if they computed in 16 bits: compute-bound by 1/3, memory-bound by 1/2.

        The factors are Daydream's for tensor cores. In a program, kernels that do not compute in 32
        or 64 bits are not scaled, and no kernel takes less than the device's least; a trace has
        neither information.

        Raises:
            OptionError: it has no kernels.
        """

        def edit(source: ActivitySource, now: Activities) -> Activities:
            limits = {name: source.limits[name] for name in source.wide}
            for limit, factor in (("compute", 1 / 3), ("memory", 1 / 2)):
                names = {a.name for a in now if limits.get(a.name) == limit}
                now = edits.scaled(now, names, factor, source.least_us)
            return now

        if not any(a.name in self.source.limits for a in self.activities):
            raise OptionError("mixed_precision: there is no kernel")
        return self._then(edit)

    def remove(self, select: Select) -> "WhatIf":
        """Removes activities, and the host calls that launch nothing else.

        Activities that waited for them wait for what they waited for.

        Raises:
            OptionError: nothing is selected.
        """
        return self._with(select, lambda _, now, names: edits.removed(now, names))

    def fuse(self, select: Select, us: float | None = None) -> "WhatIf":
        """Fuses neighbours on a queue to one kernel with the first's name.

        Args:
            select: the activities.
            us: the time of the fused kernel. By default the sum of their times; in a program, less
                the launches of all but one, and less the traffic of values that only they use.

        Raises:
            OptionError: nothing is selected, or they are not neighbours on one queue; the message
                says why.
        """
        if us is not None:
            edits.check_number("us", us)

        def edit(source: ActivitySource, now: Activities, names: frozenset[str]) -> Activities:
            parts = [activity for activity in now if activity.name in names]
            one = source.fused(parts)
            return edits.fused(now, one if us is None else edits.together([one], us), names)

        return self._with(select, edit)

    def insert(self, activity: Activity, before: Select | None = None) -> "WhatIf":
        """Inserts an activity.

        Args:
            activity: the activity, with its queue and its waits.
            before: the activities that wait for it; None puts it at the end of its queue.

        Raises:
            OptionError: its name is taken, it waits for one that does not exist or for itself, or
                nothing is selected.
        """
        if not isinstance(activity, Activity):
            raise OptionError(f"insert takes a nimble_fx.Activity, not {activity!r:.99}")
        if before is None:
            return self._then(lambda _, now: edits.inserted(now, activity))
        return self._with(before, lambda _, now, names: edits.inserted(now, activity, names))

    def move(self, select: Select, queue: str, engine: str | None = None) -> "WhatIf":
        """Moves activities to another queue: another stream, or with `engine` another device's.

        They keep their explicit waits, and lose the order of their former queue. A trace often has
        no other information on dependencies: move only activities whose dependencies you know.

        Raises:
            OptionError: nothing is selected, or the name of the queue or engine is not text.
        """
        for what, name in (("queue", queue), ("engine", engine)):
            if not isinstance(name, str) and (name is not None or what == "queue"):
                raise OptionError(f"move: {what}={name!r:.99} is not valid; it takes a name")
        return self._with(
            select,
            lambda source, now, names: edits.moved(now, names, queue, engine, source.crossing_us),
        )

    def without_launches(self) -> "WhatIf":
        """Removes the host's launches, as in a CUDA graph, which enqueues all at once."""
        return self._then(lambda _, now: edits.without_host(now))

    def on(self, device: str | Device) -> "WhatIf":
        """Runs a program on another device.

        Raises:
            OptionError: the device is not known, or the source is a trace.
        """
        return self._from(self.source.on(device))

    def streams(self, n_streams: int) -> "WhatIf":
        """Schedules a program by the policy "nimble" on at most `n_streams` streams.

        Raises:
            OptionError: it is not a whole number of at least 1, or the source is a trace.
        """
        return self._from(self.source.streams(n_streams))

    def _with(
        self,
        select: Select,
        edit: Callable[[ActivitySource, Activities, frozenset[str]], Activities],
    ) -> "WhatIf":
        """Adds an edit, whose selection is evaluated when it is applied."""
        return self._then(
            lambda source, now: edit(source, now, selected(now, select, source.limits))
        )

    def _then(self, edit: Edit) -> "WhatIf":
        edited = edit(self.source, self.activities)
        return replace(self, activities=edited, edits=(*self.edits, edit))

    def _from(self, source: ActivitySource) -> "WhatIf":
        activities = source.activities
        for edit in self.edits:
            activities = edit(source, activities)
        return replace(self, source=source, activities=activities)


def whatif(
    of: Program | Recorded | str | os.PathLike[str],
    device: str | Device | None = None,
    *,
    frozen: bool = True,
    sizes: Sizes | None = None,
) -> WhatIf:
    """A run to edit and to predict.

    Args:
        of: a program; or a recorded run: the path of a trace of torch.profiler, or the result of
            `nimble_fx.traces.read`, which can read a part of one.
        device: the device to run a program on, by name or as a `Device`; by default its own.
        frozen: whether a program is replayed as a CUDA graph; else the host calls each operator.
        sizes: the values of a program's symbolic sizes, such as {"s0": 8}.

    Raises:
        OptionError: the device is not known, the program's own has no known figures, `sizes` has
            symbols that the program lacks, or one of these is used with a trace.
        FileError: the trace cannot be read.
        UnsupportedError: a size depends on a symbol that `sizes` does not have.
    """
    source: ActivitySource
    require_bool("frozen", frozen)
    if isinstance(of, Program):
        found = _own_device(of) if device is None else find_device(device)
        source = PlannedSource(_concrete(of, sizes), found, frozen)
    else:
        if not isinstance(of, (Recorded, str, os.PathLike)):
            raise OptionError(
                "whatif takes a Program, such as nimble_fx.programs()[-1] after a model is called, "
                f"or the path of a trace, not {of!r:.99}"
            )
        if device is not None or not frozen or sizes is not None:
            raise OptionError("device, frozen and sizes are for programs; a trace has its own")
        source = RecordedSource(of if isinstance(of, Recorded) else read(of))
    try:
        activities = source.activities
    except UnsupportedError as error:
        is_symbolic = isinstance(source, PlannedSource) and symbols_of(source.graph)
        hint = "; pass it as sizes={...}" if is_symbolic else ""
        raise UnsupportedError(f"{error}{hint}") from error
    return WhatIf(source, simulate(activities).makespan_us, activities)


def _concrete(program: Program, sizes: Sizes | None) -> TaskGraph:
    """The program's graph with known sizes.

    Raises:
        OptionError: `sizes` are not valid, or a tensor would have a size below 0.
    """
    graph = concrete(program.graph, _checked(sizes, program))
    for value in graph.values:
        for each in tensor_types(value.type):
            if any(type(size) is int and size < 0 for size in each.shape):
                shape = list(each.shape)
                raise OptionError(f"sizes={sizes!r:.99}: {value.name} would have the shape {shape}")
    return graph


def _checked(sizes: Sizes | None, program: Program) -> Sizes:
    """The values of symbolic sizes.

    Raises:
        OptionError: it is not a dict of sizes, or has symbols that the program lacks.
    """
    values = {} if sizes is None else sizes
    if not isinstance(values, Mapping) or not all(
        isinstance(name, str) and type(size) is int and 0 <= size <= MAX_SIZE
        for name, size in values.items()
    ):
        raise OptionError(f'sizes={sizes!r:.99} is not valid; it takes a dict such as {{"s0": 8}}')
    symbols = sorted(symbols_of(program.graph))
    unknown = sorted(values.keys() - set(symbols))
    if unknown:
        known = f"the symbols {', '.join(symbols)}" if symbols else "no symbolic sizes"
        raise OptionError(f"sizes: there is no {unknown[0]!r}; {program.name} has {known}")
    return values


def _own_device(program: Program) -> Device:
    """The device that a program is scheduled for."""
    if program.device == "cpu":
        return DEVICES["cpu"]
    found = program.specs or find_hardware(program.hardware)
    if found is None:
        raise OptionError(
            f"{program.name} is scheduled for {program.hardware or program.device!r}, which has no "
            f"known figures: pass device=..., one of {', '.join(DEVICES)}, or a Device"
        )
    return found
