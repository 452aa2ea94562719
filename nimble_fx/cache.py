"""Schedules kept on disk: a program file for each program, device and policy.

What is taken from a directory is proved as what was just made is, against the program that was
traced, so a broken or a forged file costs time, not correctness.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from nimble_fx import files
from nimble_fx.cost.device import Device as Specs
from nimble_fx.devices import Device
from nimble_fx.errors import FileError, ScheduleError
from nimble_fx.fallback import count
from nimble_fx.ir import TaskGraph
from nimble_fx.pipeline import Pass, describe
from nimble_fx.sizes import Sizes
from nimble_fx.trace import Traced
from nimble_fx.verify import verify, verify_source

Scheduled = tuple[TaskGraph, str]
"""A schedule and its text."""


@dataclass(frozen=True)
class Unscheduled:
    """A program that is about to be scheduled.

    Attributes:
        traced: its graph and constants.
        paths: what the model calls parameters and buffers, by the graph's names.
        device: where it runs.
        specs: what it is planned for.
        sizes: what its symbolic sizes are in the call that it is compiled for.
    """

    traced: Traced
    paths: Mapping[str, str]
    device: Device
    specs: Specs
    sizes: Sizes = field(default_factory=dict)

    def stored(self, graph: TaskGraph, source: str) -> files.Stored:
        """What a file holds of the program, scheduled or not."""
        hardware = self.device.hardware or ""
        name, constants = self.device.name, self.traced.constants
        return files.Stored(graph, source, constants, self.paths, name, hardware)


@dataclass(frozen=True)
class Cache:
    """A directory of program files, each named after what it was made from.

    Processes and threads may share it: files are written whole, and any of two for the same name
    will do.
    """

    directory: Path
    warn: Callable[[str], None]

    def get(
        self, program: Unscheduled, pipeline: Sequence[Pass], make: Callable[[], Scheduled]
    ) -> Scheduled:
        """The schedule in the directory; `make`'s, which is then kept there, if there is none.

        Raises:
            ScheduleError: `make` raises it; nothing is kept.
        """
        try:
            path = self.directory / f"{_key(program, pipeline)}.json"
        except FileError as error:
            self._warn(f"{program.traced.graph.name} cannot be kept: {error}")
            return make()
        try:
            if path.exists():
                taken = _taken(files.decode(files.read(path)), program, pipeline)
                count("cache_hits")
                return taken
        except (FileError, ScheduleError) as error:
            self._warn(f"{path} is not used, and written anew: {error}")
        made = make()
        count("cache_misses")
        try:
            files.write(path, files.encode(program.stored(*made)))
        except FileError as error:
            self._warn(str(error))
        return made

    def _warn(self, message: str) -> None:
        self.warn(f"cache_dir: {message}")


def _key(program: Unscheduled, pipeline: Sequence[Pass]) -> str:
    """A name that is the same for the same program, passes, device and versions."""
    text = files.encode(program.stored(program.traced.graph, source=""))
    made_by = [*map(describe, pipeline), program.device.max_streams]
    return sha256(json.dumps([text, made_by]).encode()).hexdigest()


def _taken(stored: files.Stored, program: Unscheduled, pipeline: Sequence[Pass]) -> Scheduled:
    """The schedule of a file, proved to be one of this program; and its text, proved to be that.

    The text is proved even where the user wants no proofs: it was not emitted here.
    """
    graph, traced = stored.graph, program.traced.graph
    expected = (*traced.provenance, *map(describe, pipeline))
    if (graph.name, graph.provenance) != (traced.name, expected):
        raise FileError(
            f"it is {graph.name} by {graph.provenance}, not {traced.name} by {expected}"
        )
    verify(graph, traced)
    verify_source(stored.source, graph)
    return graph, stored.source
