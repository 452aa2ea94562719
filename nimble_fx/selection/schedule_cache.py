"""A cache of schedules on disk: a program file for each program, device and policy.

A schedule from the cache is proved against the traced program as a new one is, so a broken or
forged file costs time, not correctness.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from nimble_fx import serialization
from nimble_fx.errors import FileError, ScheduleError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.torch_internals.dynamo.counters import count_event
from nimble_fx.verify import verify, verify_source


@dataclass(frozen=True)
class ScheduleCache:
    """A directory of program files, each named by a hash of all that its schedule depends on.

    Processes and threads may share it: files are written atomically, and two for the same name are
    interchangeable.
    """

    directory: Path
    warn: Callable[[str], None]

    def entry(
        self,
        program: TracedProgram,
        depends_on: Sequence[str],
        passes: Sequence[str] | None = None,
        max_streams: int | None = None,
    ) -> "CacheEntry":
        """The cache entry for a schedule of a program.

        Args:
            program: the traced program.
            depends_on: what the schedule depends on besides the program, its device and versions.
            passes: the passes that the schedule must be from; None for any.
            max_streams: the most streams that the schedule may have; None for no limit.
        """
        try:
            name = _file_stem(program, depends_on)
        except FileError as error:
            self.warn(f"cache_dir: {program.graph.name} cannot be kept: {error}")
            return CacheEntry(None, program, passes, max_streams, self.warn)
        return CacheEntry(self.directory / f"{name}.json", program, passes, max_streams, self.warn)


@dataclass(frozen=True)
class CacheEntry:
    """The place of one schedule in a cache.

    Attributes:
        path: the file; None if the program cannot be serialized.
        program: the traced program.
        passes: the passes that the schedule must be from; None for any.
        max_streams: the most streams that the schedule may have; None for no limit.
        warn: called with a message if the file cannot be used or written.
    """

    path: Path | None
    program: TracedProgram
    passes: Sequence[str] | None
    max_streams: int | None
    warn: Callable[[str], None]

    def find(self) -> ScheduledProgram | None:
        """The schedule in the cache, proved to be one of this program; None if there is none."""
        if self.path is None:
            return None
        try:
            if not os.path.exists(self.path):  # unlike Path.exists, raises no PermissionError
                return None
            found = self._verified(serialization.decode(serialization.read(self.path)))
        except (FileError, ScheduleError) as error:
            self.warn(f"cache_dir: {self.path} is not used, and written anew: {error}")
            return None
        count_event("cache_hits")
        return found

    def store(self, scheduled: ScheduledProgram) -> None:
        """Writes a schedule to the cache."""
        if self.path is None:
            return
        count_event("cache_misses")
        try:
            serialization.write(self.path, serialization.encode(_without_sizes(scheduled)))
        except FileError as error:
            self.warn(f"cache_dir: {error}")

    def _verified(self, stored: ScheduledProgram) -> ScheduledProgram:
        """The schedule of a file and its text, both proved.

        They are proved even with `verify=False`: the file may be from anyone.

        Raises:
            FileError: the file has another program, other passes or too many streams.
            ScheduleError: the schedule or its text is not legal.
        """
        graph, traced = stored.graph, self.program.graph
        added = graph.provenance[len(traced.provenance) :] if self.passes is None else self.passes
        expected = (*traced.provenance, *added)
        if (graph.name, graph.provenance) != (traced.name, expected):
            raise FileError(
                f"it is {graph.name} by {graph.provenance}, not {traced.name} by {expected}"
            )
        if self.max_streams is not None and graph.n_streams > self.max_streams:
            raise FileError(f"it has {graph.n_streams} streams, of at most {self.max_streams}")
        verify(graph, traced)
        verify_source(stored.source, graph)
        return self.program.scheduled(graph, stored.source)


def _file_stem(program: TracedProgram, depends_on: Sequence[str]) -> str:
    """A hash of the program, its device and figures, versions, and `depends_on`."""
    unscheduled = program.scheduled(program.graph, source="")
    text = serialization.encode(_without_sizes(unscheduled))
    key = [text, [*depends_on, repr(program.specs)]]
    return sha256(json.dumps(key).encode()).hexdigest()


def _without_sizes(program: ScheduledProgram) -> ScheduledProgram:
    """The program without size hints; a policy that uses them has them in `depends_on`."""
    return replace(program, sizes={})
