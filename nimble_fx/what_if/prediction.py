"""What would it take if: edits of a program or of a recorded run, and what they would gain."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from nimble_fx.devices.specs import DEVICES, Device, find_device, find_hardware
from nimble_fx.errors import OptionError, UnsupportedError
from nimble_fx.ir.display import plural
from nimble_fx.ir.symbolic_sizes import Sizes, concrete, symbols_of
from nimble_fx.program import Program
from nimble_fx.simulation.discrete_event import Activity, Timeline, simulate
from nimble_fx.traces import Recorded, read
from nimble_fx.what_if import edits
from nimble_fx.what_if.edits import Activities
from nimble_fx.what_if.selection import Select, selected
from nimble_fx.what_if.sources import Planned, Source, Traced

Edit = Callable[[Source, Activities], Activities]


@dataclass(frozen=True)
class Prediction:
    """What a run would take.

    Attributes:
        baseline_us: what it takes without an edit, by simulation too.
        timeline: when each activity would run.
    """

    baseline_us: float
    timeline: Timeline

    @property
    def makespan_us(self) -> float:
        """When the last activity would end."""
        return self.timeline.makespan_us

    @property
    def speed_up(self) -> float:
        """How many times as fast it would be."""
        if self.makespan_us:
            return self.baseline_us / self.makespan_us
        return inf if self.baseline_us else 1.0

    def __str__(self) -> str:
        before, bound = f"{self.baseline_us:.1f} us", f"{self.timeline.bound_us:.1f} us"
        took = f"{self.makespan_us:.1f} us, {self.speed_up:.2f} times as fast as without edits"
        return f"{took} ({before}); no schedule of it goes below {bound}"


@dataclass(frozen=True)
class WhatIf:
    """A run and edits of it; each edit gives another one, and leaves this as it is.

    Daydream (Zhu et al., USENIX ATC 2020): the activities' dependency graph is edited as an
    optimization would change it, and simulated. `on` and `streams` are about what the activities
    are made from, so they take effect before the other edits, whenever they are asked for.

    Attributes:
        source: what the activities are made from.
        baseline_us: what the run takes without an edit.
        activities: the edited activities, each queue's in the order in which it runs them.
        edits: what was done to them, in order.
    """

    source: Source
    baseline_us: float
    activities: Activities
    edits: tuple[Edit, ...] = ()

    def __repr__(self) -> str:
        n = len(self.activities)
        run = f"{n} {'activity' if n == 1 else 'activities'}, {self.baseline_us:.1f} us"
        return f"<WhatIf: {run} without edits; {plural(len(self.edits), 'edit')}>"

    def predict(self) -> Prediction:
        """What it would take."""
        return Prediction(self.baseline_us, simulate(self.activities))

    def scale(self, select: Select, factor: float) -> "WhatIf":
        """If these took so many times as long, on the device or on the host.

        Args:
            select: an activity's name, a glob for names, or a part of them; "compute" or "memory"
                for kernels that are bound by that; a list of such; or a function that says whether
                an activity is meant. Here and in the other edits.
            factor: 0 for no time at all.

        Raises:
            OptionError: nothing is selected, or the factor is no number of at least 0.
        """
        return self._with(select, lambda _, made, names: edits.scaled(made, names, factor))

    def mixed_precision(self) -> "WhatIf":
        """If its kernels computed in 16 bits: compute-bound x 1/3, memory-bound x 1/2.

        The factors are those that Daydream takes for tensor cores. In a program what does not
        compute in 32 or 64 bits stays as it is, and no kernel takes less than the device's least;
        a trace does not tell either.

        Raises:
            OptionError: it has no kernels.
        """

        def edit(source: Source, made: Activities) -> Activities:
            limits = {name: source.limits[name] for name in source.wide}
            for limit, factor in (("compute", 1 / 3), ("memory", 1 / 2)):
                names = {a.name for a in made if limits.get(a.name) == limit}
                made = edits.scaled(made, names, factor, source.least_us)
            return made

        if not any(a.name in self.source.limits for a in self.activities):
            raise OptionError("mixed_precision: there is no kernel")
        return self._then(edit)

    def remove(self, select: Select) -> "WhatIf":
        """If these were not there, nor the host's calls that launch nothing else.

        What came after them comes after what they came after.

        Raises:
            OptionError: nothing is selected.
        """
        return self._with(select, lambda _, made, names: edits.removed(made, names))

    def fuse(self, select: Select, us: float | None = None) -> "WhatIf":
        """If these, which follow each other on a queue, were one kernel with the first's name.

        Args:
            select: which.
            us: what the one takes. By default what they take together; in a program without their
                launches but one, and without writing and reading what only they use.

        Raises:
            OptionError: nothing is selected, or it is no run of one queue; the message says why.
        """
        if us is not None:
            edits.check_number("us", us)

        def edit(source: Source, made: Activities, names: frozenset[str]) -> Activities:
            parts = [activity for activity in made if activity.name in names]
            one = source.fused(parts)
            return edits.fused(made, one if us is None else edits.together([one], us), names)

        return self._with(select, edit)

    def insert(self, activity: Activity, before: Select | None = None) -> "WhatIf":
        """If there were one more.

        Args:
            activity: it says itself what it waits for, and on which queue it is.
            before: what waits for it; None puts it at the end of its queue.

        Raises:
            OptionError: its name is taken, it waits for what there is not or for itself, or
                nothing is selected.
        """
        if not isinstance(activity, Activity):
            raise OptionError(f"insert takes a nimble_fx.Activity, not {activity!r:.99}")
        if before is None:
            return self._then(lambda _, made: edits.inserted(made, activity))
        return self._with(before, lambda _, made, names: edits.inserted(made, activity, names))

    def move(self, select: Select, queue: str, engine: str | None = None) -> "WhatIf":
        """If these ran on another queue: another stream, or with its engine another device's.

        They keep what they wait for, and are free of the order of the queue that they were on. In
        a trace that order is often all that it tells of who needs whom: move what you know.

        Raises:
            OptionError: nothing is selected, or the queue's or engine's name is no text.
        """
        for what, name in (("queue", queue), ("engine", engine)):
            if not isinstance(name, str) and (name is not None or what == "queue"):
                raise OptionError(f"move: {what}={name!r:.99} is not valid; it takes a name")
        return self._with(
            select,
            lambda source, made, names: edits.moved(made, names, queue, engine, source.crossing_us),
        )

    def without_launches(self) -> "WhatIf":
        """If the host took no time to launch: all is enqueued at once, as a CUDA graph is."""
        return self._then(lambda _, made: edits.without_host(made))

    def on(self, device: str | Device) -> "WhatIf":
        """If it ran on another device, for programs.

        Raises:
            OptionError: there is no such device, or it is a trace.
        """
        return self._from(self.source.on(device))

    def streams(self, n_streams: int) -> "WhatIf":
        """If it were scheduled on so many streams at most by the policy "nimble", for programs.

        Raises:
            OptionError: it is no whole number of at least 1, or it is a trace.
        """
        return self._from(self.source.streams(n_streams))

    def _with(
        self, select: Select, edit: Callable[[Source, Activities, frozenset[str]], Activities]
    ) -> "WhatIf":
        """One more edit, of what is selected when its turn comes."""
        return self._then(
            lambda source, made: edit(source, made, selected(made, select, source.limits))
        )

    def _then(self, edit: Edit) -> "WhatIf":
        made = edit(self.source, self.activities)
        return replace(self, activities=made, edits=(*self.edits, edit))

    def _from(self, source: Source) -> "WhatIf":
        made = source.activities
        for edit in self.edits:
            made = edit(source, made)
        return replace(self, source=source, activities=made)


def whatif(
    of: Program | Recorded | str | os.PathLike[str],
    device: str | Device | None = None,
    *,
    frozen: bool = True,
    sizes: Sizes | None = None,
) -> WhatIf:
    """A run to edit, and to predict what it would take.

    Args:
        of: a program; or a recorded run: the path of a trace that torch.profiler wrote, or what
            `nimble_fx.traces.read` made of one, to look at a part of it.
        device: the device that a program is to run on, by name or description; by default the one
            that it was made for.
        frozen: whether a program is replayed from a CUDA graph; else the host calls each operator.
        sizes: what a program's symbolic sizes are taken for, such as {"s0": 8}.

    Raises:
        OptionError: there is no such device, none is known for the program, `sizes` are not its
            own, or these are given for a trace.
        FileError: the trace cannot be read.
        UnsupportedError: a size depends on a symbol that `sizes` does not have.
    """
    source: Source
    if type(frozen) is not bool:
        raise OptionError(f"frozen={frozen!r:.99} is not valid; it takes True or False")
    if isinstance(of, Program):
        found = _own_device(of) if device is None else find_device(device)
        source = Planned(concrete(of.graph, _checked(sizes, of)), found, frozen)
    else:
        if not isinstance(of, (Recorded, str, os.PathLike)):
            raise OptionError(
                "whatif takes a Program, such as nimble_fx.programs()[-1] once a model was called, "
                f"or the path of a trace, not {of!r:.99}"
            )
        if device is not None or not frozen or sizes is not None:
            raise OptionError("device, frozen and sizes are for programs; a trace has its own")
        source = Traced(of if isinstance(of, Recorded) else read(of))
    try:
        made = source.activities
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; say it with sizes={{...}}") from error
    return WhatIf(source, simulate(made).makespan_us, made)


def _checked(sizes: Sizes | None, program: Program) -> Sizes:
    """What symbolic sizes are taken for.

    Raises:
        OptionError: they are no numbers by name, or not those of the program.
    """
    given = {} if sizes is None else sizes
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and type(size) is int for name, size in given.items()
    ):
        raise OptionError(f'sizes={sizes!r:.99} is not valid; it takes a dict such as {{"s0": 8}}')
    symbols = sorted(symbols_of(program.graph))
    unknown = sorted(given.keys() - set(symbols))
    if unknown:
        known = f"the symbols {', '.join(symbols)}" if symbols else "no symbolic sizes"
        raise OptionError(f"sizes: there is no {unknown[0]!r}; {program.name} has {known}")
    return given


def _own_device(program: Program) -> Device:
    """The device that a program was made for."""
    if program.device == "cpu":
        return DEVICES["cpu"]
    found = program.specs or find_hardware(program.hardware)
    if found is None:
        raise OptionError(
            f"{program.name} was made for {program.hardware or program.device!r}, of which no "
            f"figures are known: say device=..., one of {', '.join(DEVICES)}, or a description"
        )
    return found
