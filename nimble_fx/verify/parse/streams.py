"""Streams and events of a text, with CUDA's semantics: an event covers all before its record.

An event recorded between a wait and the task that waits covers only the task before: it orders a
little less than CUDA's would, never more.
"""

from collections.abc import Sequence
from difflib import get_close_matches

from nimble_fx.errors import ScheduleError

_START = ""
"""Stands for the start of stream 0, before any task."""


class StreamState:
    """The state of streams and events while a text is parsed.

    Attributes:
        forks: the tasks that waited for the start of stream 0.
        recorded: the recorded events, each with the task that it was recorded after.
        n_streams: the number of streams.
    """

    def __init__(self) -> None:
        self.forks: list[str] = []
        self.recorded: dict[str, str] = {}
        self._index: dict[str, int] = {}
        self._newest: dict[int, str] = {}
        self._awaited: dict[int, dict[str, None]] = {}

    @property
    def n_streams(self) -> int:
        return len(self._index)

    def unpack(self, names: Sequence[str]) -> None:
        """Parses `s0, s1, ... = streams`."""
        if self._index or list(names) != [f"s{i}" for i in range(len(names))]:
            raise ScheduleError("streams must be named s0, s1, ... once")
        self._index = {name: i for i, name in enumerate(names)}

    def has(self, name: str) -> bool:
        """Whether it is the name of a stream."""
        return name in self._index

    def index(self, name: str) -> int:
        """The number of a stream."""
        if name not in self._index:
            raise ScheduleError(f"{name} is not a stream of this module")
        return self._index[name]

    def record(self, event: str, name: str) -> None:
        """Parses `e.event.record(name)`; a later record of the same event replaces this one."""
        stream = self.index(name)
        if stream != 0 and stream not in self._newest and stream not in self._awaited:
            raise ScheduleError(f"nothing has been launched on {name} before this record")
        self.recorded[event] = self._newest.get(stream, _START)

    def wait(self, name: str, event: str) -> None:
        """Parses `name.wait_event(e.event)`: the next task on the stream waits."""
        stream = self.index(name)
        if event not in self.recorded:
            similar = get_close_matches(event, self.recorded, n=1)
            hint = f"; did you mean e.{similar[0]}?" if similar else ""
            raise ScheduleError(
                f"e.{event} has not been recorded yet, so the wait would do nothing{hint}"
            )
        if stream != 0 or self.recorded[event] != _START:
            self._awaited.setdefault(stream, {})[self.recorded[event]] = None

    def launch(self, task: str, stream: int) -> tuple[str, ...]:
        """Launches a task on a stream; returns the tasks that it waits for."""
        self._newest[stream] = task
        awaited = self._awaited.pop(stream, None)
        if awaited is None:
            return ()
        if _START in awaited:
            self.forks.append(task)
        return tuple(name for name in awaited if name != _START)

    def joins(self) -> tuple[str, ...]:
        """The tasks that stream 0 waits for at the end."""
        return tuple(self._awaited.pop(0, {}))

    @property
    def idle_waits(self) -> tuple[str, ...]:
        """The side streams that still wait at the end, so that nothing joins them."""
        return tuple(f"s{stream}" for stream in sorted(self._awaited))
