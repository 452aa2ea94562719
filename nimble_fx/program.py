"""What a user looks at: a compiled program's graph, source and state, and the list of them."""

from dataclasses import dataclass
from pathlib import Path

from nimble_fx.emit import count
from nimble_fx.freeze import Status
from nimble_fx.ir import TaskGraph
from nimble_fx.verify import verify, verify_source


@dataclass(frozen=True)
class Program:
    """A compiled program: one forward, backward or inference graph of a model.

    Attributes:
        graph: the scheduled task graph.
        source: the text of the emitted module.
        path: where the text was written; None if it is in memory only.
        file: what tracebacks call the module.
        device: the device that it runs on.
        status: whether it is frozen, and if not, why.
    """

    graph: TaskGraph
    source: str
    path: Path | None
    file: str
    device: str
    status: Status

    @property
    def name(self) -> str:
        """What the user would call it, such as "Branchy.forward"."""
        return self.graph.name

    def verify(self) -> None:
        """Proves the schedule legal again, and that the source is that schedule.

        Raises:
            ScheduleError: it is not.
        """
        verify(self.graph)
        verify_source(self.source, self.graph)

    def summary(self) -> str:
        """One screen: tasks, streams, waits, frees, where it runs, why it is not frozen."""
        graph = self.graph
        frees = sum(len(task.frees) for task in graph.tasks)
        rows = {
            "tasks": f"{len(graph.launching)} launched, {len(graph.tasks)} in all",
            "streams": f"{graph.n_streams} (width {graph.width})",
            "waits": f"{graph.n_waits} of {graph.n_edges} orders between tasks",
            "forks": f"{len(graph.forks)} from stream 0, {len(graph.joins)} joined to it",
            "frees": f"{frees} values before the end",
            "runs on": self.device,
            "frozen": _frozen(self.status),
            "memory": _memory(self.status),
            "module": str(self.path or self.file),
            "passes": "\n           ".join(graph.provenance),
        }
        shown = (f"  {key:9}{text}" for key, text in rows.items() if text)
        return "\n".join([graph.name, *shown])

    def __repr__(self) -> str:
        return f"<Program {self.name}: {count(self.graph.n_streams, 'stream')}, {self.device}>"


def _frozen(status: Status) -> str:
    if not status.frozen:
        return f"no: {status.reason or 'not called yet'}"
    graphs = f"yes, {count(status.n_graphs, 'graph')}"
    return f"{graphs}; no more: {status.reason}" if status.reason else graphs


def _memory(status: Status) -> str:
    """What the graphs own, by stream."""
    by_stream = [f"s{i} {nbytes / 2**20:.1f} MiB" for i, nbytes in enumerate(status.nbytes)]
    return f"{', '.join(by_stream)}; workspaces of libraries included" if by_stream else ""


_programs: list[Program] = []


def programs() -> tuple[Program, ...]:
    """The programs compiled in this process, oldest first; `torch.compiler.reset()` clears them."""
    return tuple(_programs)


def register(program: Program) -> None:
    """Adds a program to the list."""
    _programs.append(program)


def clear() -> None:
    """Empties the list. Compiled models keep working."""
    _programs.clear()
