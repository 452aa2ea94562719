"""The orders that the text of a module enforces, found by running it: the oracle for texts.

The text runs on objects that only take notes: a stream knows what its next kernel comes after, an
event what its stream came after when it was recorded, as CUDA's do. What the program needs is the
graph's to say; `tests.support.oracle` judges with networkx. Nothing is read back, and
nothing is proved.
"""

from collections.abc import Iterator
from typing import Any

import networkx as nx

from nimble_fx.ir.task_graph import Task, TaskGraph
from nimble_fx.ir.types import TupleType
from tests.support.oracle import CALL, RETURN, races, unsafe_frees


def breaks_an_order(text: str, graph: TaskGraph) -> bool:
    """Whether a text, changed in its records and waits alone, leaves an order of a program open.

    Args:
        text: the module.
        graph: the schedule that it was emitted from.
    """
    notes = _Notes(graph)
    try:
        notes.run(text)
    except _OutsideOfCaptureError:
        return True
    order = nx.transitive_closure_dag(notes.order)
    tasks = {task.name for task in graph.launching}
    within = set(order.successors(CALL)) & set(order.predecessors(RETURN))
    return bool(tasks - within or races(graph, order) or unsafe_frees(graph, order))


class _OutsideOfCaptureError(Exception):
    """A stream of the capture waits for an event of none."""


class _Event:
    """What comes before whoever waits for it; None if its stream took no part in the capture."""

    is_recorded = False
    before: frozenset[str] | None = frozenset()

    def record(self, stream: "_Stream") -> None:
        self.is_recorded, self.before = True, stream.before


class _Stream:
    """What its next kernel comes after; None until it takes part in the capture."""

    def __init__(self, notes: "_Notes", before: frozenset[str] | None) -> None:
        self._notes, self.before = notes, before

    def __enter__(self) -> None:
        self._notes.entered.append(self)

    def __exit__(self, *error: object) -> None:
        self._notes.entered.pop()

    def wait_event(self, event: _Event) -> None:
        if event.is_recorded:
            if event.before is None:
                raise _OutsideOfCaptureError
            self.before = (self.before or frozenset()) | event.before

    def launch(self, task: str) -> None:
        self._notes.order.add_node(task)
        self._notes.order.add_edges_from((before, task) for before in self.before or ())
        self.before = frozenset([task])


class _Events:
    def __getattr__(self, name: str) -> _Event:
        event = self.__dict__[name] = _Event()
        return event


class _Called:
    """Any operator, and any value: calls of it are the tasks, in the order of the text."""

    def __init__(self, notes: "_Notes", n_results: int = 0) -> None:
        self._notes, self._n_results = notes, n_results

    def __getattr__(self, name: str) -> "_Called":
        return self

    def __getitem__(self, index: int) -> "_Called":
        return self

    def __iter__(self) -> Iterator["_Called"]:
        return iter([self] * self._n_results)

    def __call__(self, *args: object, **kwargs: object) -> "_Called":
        task = self._notes.launch()
        results = task.type.items if isinstance(task.type, TupleType) else ()
        return _Called(self._notes, len(results))


class _Torch:
    """`torch` of a module, whose operators and functions of sizes are called, and no others."""

    def __init__(self, called: _Called) -> None:
        self._called = called

    def __getattr__(self, name: str) -> Any:
        is_called = name == "ops" or name.startswith("sym_")
        return self._called if is_called else lambda *_: None


class _Notes:
    """The order between the tasks, the start and the end of one call."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._tasks: Iterator[Task] = (task for task in graph.tasks if not task.is_item)
        self.order: nx.DiGraph[str] = nx.DiGraph()
        self.order.add_nodes_from([CALL, RETURN])
        self.entered: list[_Stream] = []

    def run(self, text: str) -> None:
        """Calls the module once."""
        module: dict[str, Any] = {}
        exec(compile(text, "<text>", "exec"), module)
        called = _Called(self)
        names = ("aten", "builtins", "math", "operator")
        module.update(dict.fromkeys(names, called), torch=_Torch(called))
        caller = _Stream(self, frozenset([CALL]))
        sides = [_Stream(self, None) for _ in range(self._graph.n_streams - 1)]
        given = [value for value in self._graph.inputs if not value.static]
        streams = [caller, *sides] if self._graph.n_streams else []
        module["call"]([called for _ in given], called, streams, _Events())
        caller.launch(RETURN)

    def launch(self) -> Task:
        """The next task of the text, which is launched where the text is."""
        task = next(self._tasks)
        if task.launches:
            self.entered[-1].launch(task.name)
        return task
