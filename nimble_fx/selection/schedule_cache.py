"""Schedules kept on disk: a program file for each program, device and policy.

What is taken from a directory is proved as what was just made is, against the program that was
traced, so a broken or a forged file costs time, not correctness.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from nimble_fx import serialization
from nimble_fx.errors import FileError, ScheduleError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.torch_internals.counters import count_event
from nimble_fx.verify import verify, verify_source


@dataclass(frozen=True)
class ScheduleCache:
    """A directory of program files, each named after what it was made from.

    Processes and threads may share it: files are written whole, and any of two for the same name
    will do.
    """

    directory: Path
    warn: Callable[[str], None]

    def entry(
        self,
        program: TracedProgram,
        made_by: Sequence[str],
        passes: Sequence[str] | None = None,
        max_streams: int | None = None,
    ) -> "Entry":
        """Where a schedule of a program is kept.

        Args:
            program: what is scheduled.
            made_by: what the schedule depends on besides.
            passes: those that must have made it; None if any may have.
            max_streams: at most so many it may have.
        """
        try:
            name = _key(program, made_by)
        except FileError as error:
            self.warn(f"cache_dir: {program.traced.graph.name} cannot be kept: {error}")
            return Entry(None, program, passes, max_streams, self.warn)
        return Entry(self.directory / f"{name}.json", program, passes, max_streams, self.warn)


@dataclass(frozen=True)
class Entry:
    """A place in a cache.

    Attributes:
        path: the file; None for a program that has no form in a file.
        program: what is scheduled.
        passes: those that must have made the schedule; None if any may have.
        max_streams: at most so many it may have; None for no limit.
        warn: is told of files that cannot be used or written.
    """

    path: Path | None
    program: TracedProgram
    passes: Sequence[str] | None
    max_streams: int | None
    warn: Callable[[str], None]

    def find(self) -> ScheduledProgram | None:
        """The schedule that is kept, proved to be one of this program; None if there is none."""
        if self.path is None:
            return None
        try:
            if not self.path.exists():
                return None
            taken = self._taken(serialization.decode(serialization.read(self.path)))
        except (FileError, ScheduleError) as error:
            self.warn(f"cache_dir: {self.path} is not used, and written anew: {error}")
            return None
        count_event("cache_hits")
        return taken

    def keep(self, scheduled: ScheduledProgram) -> None:
        """Writes a schedule there."""
        if self.path is None:
            return
        count_event("cache_misses")
        try:
            serialization.write(self.path, serialization.encode(_without_sizes(scheduled)))
        except FileError as error:
            self.warn(f"cache_dir: {error}")

    def _taken(self, stored: ScheduledProgram) -> ScheduledProgram:
        """The schedule of a file, and its text, each proved to be what it should be.

        The text is proved even where the user wants no proofs: it was not emitted here.
        """
        graph, traced = stored.graph, self.program.traced.graph
        made_by = graph.provenance[len(traced.provenance) :] if self.passes is None else self.passes
        expected = (*traced.provenance, *made_by)
        if (graph.name, graph.provenance) != (traced.name, expected):
            raise FileError(
                f"it is {graph.name} by {graph.provenance}, not {traced.name} by {expected}"
            )
        if self.max_streams is not None and graph.n_streams > self.max_streams:
            raise FileError(f"it has {graph.n_streams} streams, of at most {self.max_streams}")
        verify(graph, traced)
        verify_source(stored.source, graph)
        return self.program.scheduled(graph, stored.source)


def _key(program: TracedProgram, made_by: Sequence[str]) -> str:
    """A name that is the same for the same program, passes, device and versions."""
    unscheduled = program.scheduled(program.traced.graph, source="")
    text = serialization.encode(_without_sizes(unscheduled))
    depends_on = [*made_by, repr(program.specs), program.device.max_streams]
    return sha256(json.dumps([text, depends_on]).encode()).hexdigest()


def _without_sizes(program: ScheduledProgram) -> ScheduledProgram:
    """The program as it is for any call; what a policy by cost made of sizes is in `made_by`."""
    return replace(program, sizes={})
