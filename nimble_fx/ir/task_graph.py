"""The task graph: the operator calls of a model, and how they are scheduled. Data only.

`trace` makes a TaskGraph, each pass returns a new one, `verify` proves it, `emit` writes it out.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.bipartite_matching import width
from nimble_fx.ir.display import aligned
from nimble_fx.ir.types import TensorType, TupleType, Type
from nimble_fx.torch_internals.names import OpOverload

if TYPE_CHECKING:
    import networkx as nx

Arg = Any
"""An argument: a Ref, a constant (number, string, dtype, device, ...), or lists of arguments."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value, named by the task, input or constant that defines it."""

    name: str


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code, in one module of the model.

    Attributes:
        module: the path of the module, "layer1.0", which tells apart what instances of one class
            compute by the same line; "" for the model itself.
    """

    file: str
    line: int
    code: str
    module: str = ""

    def __str__(self) -> str:
        return self.place(self.file)

    def place(self, file: str) -> str:
        """Where it is: "resnet.py:92 in layer1.0".

        Args:
            file: the name to use for the file.
        """
        where = f" in {self.module}" if self.module else ""
        return f"{file}:{self.line}{where}"


@dataclass(frozen=True, slots=True)
class Input:
    """A value that no task defines: an input, a parameter, a buffer or a constant.

    Attributes:
        holds: the storages that the value keeps alive.
        static: whether its address stays the same from call to call (parameters and buffers).
    """

    name: str
    type: Type | None
    holds: tuple[str, ...] = ()
    static: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One operator call.

    Attributes:
        name: its fx name, which is also the name of the value that it returns.
        target: the function that it calls: an OpOverload, `operator.getitem`, or a function of
            sizes.
        index: its position in the traced program, from which hazards get their direction.
        reads: storages that its kernels read. RAW, WAR and WAW follow from `reads` and `writes`.
        writes: storages that its kernels write, including those that it allocates.
        allocates: storages that it allocates, on the stream that it runs on.
        holds: storages that its value keeps alive, including through views and tuples.
        ordered: whether it must be launched in program order relative to other such tasks: it
            draws random numbers or has side effects.
        after: tasks that must happen before it.
        stream: where it runs; None while it is not scheduled, and if it launches nothing.
        waits: tasks on other streams whose event it waits for.
        frees: values whose last reference is dropped once it is launched.
        source: the line of the user's code that it comes from.
        fused: other lines that it computes, in program order, if its kernel fuses operators.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    type: Type | None = None
    index: int = 0
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    allocates: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    ordered: bool = False
    after: tuple[str, ...] = ()
    stream: int | None = None
    waits: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    source: Source | None = None
    fused: tuple[Source, ...] = ()
    _uses: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def launches(self) -> bool:
        """Whether it runs a kernel or allocates memory: views, `getitem` and sizes do not."""
        return bool(self.reads or self.writes)

    @property
    def is_item(self) -> bool:
        """Whether it selects one result of an operator that has several."""
        return self.target is operator.getitem and bool(self.args) and type(self.args[0]) is Ref

    @property
    def uses(self) -> tuple[str, ...]:
        """The names of the values among its arguments, each once."""
        if self._uses is None:
            object.__setattr__(self, "_uses", tuple(ref_names((self.args, self.kwargs))))
        return self._uses or ()

    def updated(self, **changes: Any) -> "Task":
        """The task with some attributes replaced; the same object if they are equal."""
        if all(getattr(self, name) == value for name, value in changes.items()):
            return self
        task = object.__new__(Task)  # `replace` is slower, and drops the cached `uses`
        for name in Task.__slots__:
            object.__setattr__(task, name, changes.get(name, getattr(self, name)))
        if "args" in changes or "kwargs" in changes:
            object.__setattr__(task, "_uses", None)
        return task


@dataclass(frozen=True)
class TaskGraph:
    """A traced program and its schedule.

    Attributes:
        name: a title from the user's code, such as "Branchy.forward".
        inputs: the arguments of a call, in order.
        constants: tensors that the trace found in the model's code.
        tasks: in launch order, which is a topological order.
        outputs: the results of a call: Refs and constants.
        provenance: the passes that produced it, in order.
        urgent: the stream whose kernels a CUDA graph starts first where several are ready; None if
            all streams are equal. A hint to the device, from which no order follows.
        labels: for readers, what each output is: "gradient of fc.weight", or "" for a result of the
            model; empty if all are results.
    """

    name: str
    inputs: tuple[Input, ...]
    constants: tuple[Input, ...]
    tasks: tuple[Task, ...]
    outputs: tuple[Arg, ...]
    provenance: tuple[str, ...] = ()
    urgent: int | None = None
    labels: tuple[str, ...] = ()

    def replace_tasks(self, tasks: Iterable[Task]) -> "TaskGraph":
        """The same program with other tasks; the same object if they are equal."""
        tasks = tuple(tasks)
        return self if tasks == self.tasks else replace(self, tasks=tasks)

    @property
    def values(self) -> tuple[Input | Task, ...]:
        """All values: inputs, constants and tasks."""
        return (*self.inputs, *self.constants, *self.tasks)

    def with_streams(
        self, streams: Mapping[str, int | None], urgent: int | None = None
    ) -> "TaskGraph":
        """The same program with each task on its stream; the same object if they are equal.

        Args:
            streams: the stream of each task, by name; tasks that are not in it, such as views,
                have none.
            urgent: see the attribute.

        Raises:
            ScheduleError: `streams` has a name that is not a task of the program.
        """
        for name in streams:
            if name not in self.by_name:
                raise ScheduleError(f"{name!r:.99} is not the name of a task in {self.name}")
        placed = self.replace_tasks(t.updated(stream=streams.get(t.name)) for t in self.tasks)
        return placed if placed.urgent == urgent else replace(placed, urgent=urgent)

    @cached_property
    def by_name(self) -> Mapping[str, Task]:
        """Each task by its name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def types(self) -> Mapping[str, Type | None]:
        """The type of each value by its name."""
        return {value.name: value.type for value in self.values}

    @cached_property
    def launching(self) -> tuple[Task, ...]:
        """The tasks that run something on the device, in launch order."""
        return tuple(task for task in self.tasks if task.launches)

    @cached_property
    def n_streams(self) -> int:
        """The number of streams; 0 before streams are assigned."""
        return len({task.stream for task in self.launching} - {None})

    @property
    def n_waits(self) -> int:
        """The number of waits between tasks; forks from and joins to stream 0 are not counted."""
        return sum(len(task.waits) for task in self.tasks)

    @property
    def n_edges(self) -> int:
        """The number of dependencies in `after`: |E'| once reduce-edges has run."""
        return sum(len(task.after) for task in self.tasks)

    @cached_property
    def forks(self) -> tuple[str, ...]:
        """The first task of each side stream that waits for no other task.

        It waits for the fork event, which is recorded on stream 0 before anything else. The first
        tasks of other side streams happen after one of these, so they need not wait for it.
        """
        first: dict[int, Task] = {}
        for task in self.tasks:
            if task.stream is not None:
                first.setdefault(task.stream, task)
        return tuple(t.name for s, t in sorted(first.items()) if s and not t.waits)

    @cached_property
    def joins(self) -> tuple[str, ...]:
        """The last task of each side stream that no other task waits for.

        Stream 0 waits for these at the end. The last tasks of other side streams happen before one
        of these, or before a task on stream 0.
        """
        last = {task.stream: task.name for task in self.tasks if task.stream is not None}
        awaited = {name for task in self.tasks for name in task.waits}
        return tuple(n for s, n in sorted(last.items()) if s and n not in awaited)

    @cached_property
    def recorded(self) -> frozenset[str]:
        """The tasks after which an event is recorded: those that a stream waits for."""
        return frozenset(self.joins).union(*(task.waits for task in self.tasks))

    @cached_property
    def device(self) -> torch.device:
        """The device of the first tensor; the CPU if there is none."""
        types = (value.type for value in self.values)
        return next((t.device for t in types if isinstance(t, TensorType)), torch.device("cpu"))

    def map_types(self, function: Callable[[Type | None], Type | None]) -> "TaskGraph":
        """The graph with `function` applied to the types of all values, to each item of tuples."""

        def mapped(of: Type | None) -> Type | None:
            if isinstance(of, TupleType):
                return TupleType(tuple(map(mapped, of.items)))
            return function(of)

        tasks = self.replace_tasks(task.updated(type=mapped(task.type)) for task in self.tasks)
        inputs, constants = (
            tuple(replace(value, type=mapped(value.type)) for value in values)
            for values in (self.inputs, self.constants)
        )
        return replace(tasks, inputs=inputs, constants=constants)

    @cached_property
    def width(self) -> int:
        """The most tasks that could run at once: the maximum logical concurrency."""
        return width(dependency_rows(self.launching))

    def to_networkx(self) -> "nx.DiGraph[str]":
        """The launching tasks and their dependencies, for other tools and for pictures."""
        import networkx as nx

        digraph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        for task in self.launching:
            digraph.add_node(task.name, target=str(task.target), stream=task.stream)
        digraph.add_edges_from((u, task.name) for task in self.launching for u in task.after)
        return digraph

    def __str__(self) -> str:
        """One line a task: name, operator, type, stream, what it waits for and frees, source."""
        rows: list[tuple[str, ...]] = [
            ("task", "operator", "type", "stream", "waits", "frees", "source")
        ]
        rows += [task_row(task) for task in self.tasks]
        inputs = ", ".join(f"{i.name}: {i.type}" for i in self.inputs + self.constants)
        outputs = ", ".join(r.name if isinstance(r, Ref) else str(r) for r in self.outputs)
        return "\n".join([f"{self.name}({inputs})", *aligned(rows), f"return ({outputs})", ""])


def task_row(task: Task) -> tuple[str, ...]:
    """A task's row in a table: name, operator, type, stream, waits, frees, source."""
    stream = "-" if task.stream is None else str(task.stream)
    waits, frees = ", ".join(task.waits), ", ".join(task.frees)
    return (
        task.name,
        target_name(task.target),
        str(task.type),
        stream,
        waits,
        frees,
        task.source.place(PurePath(task.source.file).name) if task.source else "",
    )


def dependency_rows(tasks: Sequence[Task]) -> list[int]:
    """The dependencies between `tasks` (`after`) as a DAG on their positions; see `bitset_dag`."""
    position = {task.name: i for i, task in enumerate(tasks)}
    rows = [0] * len(tasks)
    for v, task in enumerate(tasks):
        for name in task.after:
            rows[position[name]] |= 1 << v
    return rows


def shared_by_inputs(graph: TaskGraph) -> set[str]:
    """The storages that several inputs held when the graph was traced.

    PyTorch does not compile again for a call in which each has a storage of its own.
    """
    holders = Counter(storage for value in graph.inputs for storage in value.holds)
    return {storage for storage, n in holders.items() if n > 1}


def ref_names(arg: Arg) -> list[str]:
    """The names of the values in an argument, depth first, each once."""
    names: dict[str, None] = {}
    _collect_names((arg,), names)
    return list(names)


def _collect_names(args: Iterable[Arg], names: dict[str, None]) -> None:
    for arg in args:
        kind = type(arg)
        if kind is Ref:
            names[arg.name] = None
        elif kind is tuple or kind is list:
            _collect_names(arg, names)
        elif kind is slice:
            _collect_names((arg.start, arg.stop, arg.step), names)


@lru_cache(maxsize=4096)
def target_name(target: Callable[..., Any]) -> str:
    """A readable name of a task's target: "aten.mm.default", "operator.getitem"."""
    if isinstance(target, OpOverload):
        return str(target)
    return f"{target.__module__.removeprefix('_')}.{target.__name__}"
