"""The task graph: what a model does, task by task, and how it is scheduled. Data only.

`trace` makes a TaskGraph, each pass returns a new one, `verify` judges it, `emit` writes it out.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.bipartite_matching import width
from nimble_fx.ir.display import table
from nimble_fx.torch_internals.names import OpOverload

if TYPE_CHECKING:
    import networkx as nx

Size = int | str
"""A size: a number, or a symbolic expression such as "s0*2"."""

Arg = Any
"""An argument: a Ref, a constant (number, string, dtype, device, ...), or lists of arguments."""

_DTYPE_NAMES = {
    torch.bool: "b8",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


@dataclass(frozen=True, slots=True)
class Ref:
    """A value, by the name of the task, input or constant that makes it."""

    name: str


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known of a tensor ahead of time."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A number on the host: a size that is known when the program runs, or a plain constant."""

    expression: str

    def __str__(self) -> str:
        return f"Sym({self.expression})"


@dataclass(frozen=True, slots=True)
class TupleType:
    """What an operator with several results returns; None where it returns nothing."""

    items: tuple["Type | None", ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Type = TensorType | ScalarType | TupleType


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Input:
    """A value that the program is given: an input, a parameter, a buffer or a constant.

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
        name: fx's name for it, and for the value that it makes.
        target: what is called: an OpOverload, `operator.getitem`, or a function of sizes.
        index: its position in the traced program, which says what "before" means to a hazard.
        reads: storages that its kernels read. With `writes`, the truth for RAW, WAR and WAW.
        writes: storages that its kernels write, those that it allocates among them.
        allocates: storages that it allocates, on the stream that it runs on.
        holds: storages that its value keeps alive, through views and tuples too.
        ordered: whether the host must keep it in program order with the others of its kind:
            random draws and side effects.
        after: tasks that must happen before it.
        stream: where it runs; None while it is not scheduled, and if it launches nothing.
        waits: tasks on other streams whose event it waits for.
        frees: values whose last reference is dropped once it is launched.
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
    _uses: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def launches(self) -> bool:
        """Whether it does anything on the device: views, `getitem` and sizes do not."""
        return bool(self.reads or self.writes)

    @property
    def is_item(self) -> bool:
        """Whether it takes one of the results of an operator that has several."""
        return self.target is operator.getitem and bool(self.args) and type(self.args[0]) is Ref

    @property
    def uses(self) -> tuple[str, ...]:
        """The values among its arguments, each once."""
        if self._uses is None:
            object.__setattr__(self, "_uses", tuple(ref_names((self.args, self.kwargs))))
        return self._uses or ()

    def updated(self, **changes: Any) -> "Task":
        """The task with other attributes; this very object if they are equal."""
        if all(getattr(self, name) == value for name, value in changes.items()):
            return self
        task = object.__new__(Task)  # `replace` takes longer, and forgets what the task uses
        for name in Task.__slots__:
            object.__setattr__(task, name, changes.get(name, getattr(self, name)))
        if "args" in changes or "kwargs" in changes:
            object.__setattr__(task, "_uses", None)
        return task


@dataclass(frozen=True)
class TaskGraph:
    """A traced program and its schedule.

    Attributes:
        name: what the user would call it, such as "Branchy.forward".
        inputs: what a call is given, in order.
        constants: tensors that the trace found in the model's code.
        tasks: in launch order, which is a topological order.
        outputs: what a call returns: Refs and constants.
        provenance: the passes that made it, in order.
        urgent: the stream whose kernels a CUDA graph starts first where several are ready; None if
            all streams are equal. It orders nothing: a hint to the device.
    """

    name: str
    inputs: tuple[Input, ...]
    constants: tuple[Input, ...]
    tasks: tuple[Task, ...]
    outputs: tuple[Arg, ...]
    provenance: tuple[str, ...] = ()
    urgent: int | None = None

    def replace_tasks(self, tasks: Iterable[Task]) -> "TaskGraph":
        """The same program with other tasks; this very object if they are equal."""
        tasks = tuple(tasks)
        return self if tasks == self.tasks else replace(self, tasks=tasks)

    @property
    def values(self) -> tuple[Input | Task, ...]:
        """Everything that has a name: inputs, constants and tasks."""
        return (*self.inputs, *self.constants, *self.tasks)

    def with_streams(
        self, streams: Mapping[str, int | None], urgent: int | None = None
    ) -> "TaskGraph":
        """The same program with each task on its stream; this very object if they are equal.

        Args:
            streams: by task's name; tasks that are not among them, such as views, have none.
            urgent: see the attribute.

        Raises:
            ScheduleError: it names what is no task of the program.
        """
        for name in streams:
            if name not in self.by_name:
                raise ScheduleError(f"{name!r:.99} is no task's name in {self.name}")
        placed = self.replace_tasks(t.updated(stream=streams.get(t.name)) for t in self.tasks)
        return placed if placed.urgent == urgent else replace(placed, urgent=urgent)

    @cached_property
    def by_name(self) -> Mapping[str, Task]:
        """Each task by its name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def launching(self) -> tuple[Task, ...]:
        """The tasks that do something on the device, in launch order."""
        return tuple(task for task in self.tasks if task.launches)

    @cached_property
    def n_streams(self) -> int:
        """How many streams it runs on; 0 before streams are assigned."""
        return len({task.stream for task in self.launching} - {None})

    @property
    def n_waits(self) -> int:
        """Waits between tasks. Forks from and joins to stream 0 are counted apart."""
        return sum(len(task.waits) for task in self.tasks)

    @property
    def n_edges(self) -> int:
        """How many orders between two tasks it keeps: |E'| once reduce-edges has run."""
        return sum(len(task.after) for task in self.tasks)

    @cached_property
    def forks(self) -> tuple[str, ...]:
        """The first task of each side stream that waits for no other task.

        It waits for the fork event, recorded on stream 0 before anything else. The others come
        after one of these, so they need not.
        """
        first: dict[int, Task] = {}
        for task in self.tasks:
            if task.stream is not None:
                first.setdefault(task.stream, task)
        return tuple(t.name for s, t in sorted(first.items()) if s and not t.waits)

    @cached_property
    def joins(self) -> tuple[str, ...]:
        """The last task of each side stream that no other task waits for.

        Stream 0 waits for these at the end. Who waits for one of the others comes before one of
        these, or is on stream 0.
        """
        last = {task.stream: task.name for task in self.tasks if task.stream is not None}
        awaited = {name for task in self.tasks for name in task.waits}
        return tuple(n for s, n in sorted(last.items()) if s and n not in awaited)

    @cached_property
    def recorded(self) -> frozenset[str]:
        """The tasks that an event is recorded after: those that somebody waits for."""
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
        """The most tasks of which no two are ordered: the maximum logical concurrency."""
        return width(dependency_rows(self.launching))

    def to_networkx(self) -> "nx.DiGraph[str]":
        """The launching tasks and the orders between them, for other tools and for pictures."""
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
        return "\n".join([f"{self.name}({inputs})", *table(rows), f"return ({outputs})", ""])


def task_row(task: Task) -> tuple[str, ...]:
    """What a table shows of a task: name, operator, type, stream, waits, frees, source."""
    stream = "-" if task.stream is None else str(task.stream)
    waits, frees = ", ".join(task.waits), ", ".join(task.frees)
    return (
        task.name,
        target_name(task.target),
        str(task.type),
        stream,
        waits,
        frees,
        f"{PurePath(task.source.file).name}:{task.source.line}" if task.source else "",
    )


def dependency_rows(tasks: Sequence[Task]) -> list[int]:
    """The orders between `tasks` (`after`) as a DAG on their positions; see `bitset_dag`."""
    position = {task.name: i for i, task in enumerate(tasks)}
    rows = [0] * len(tasks)
    for v, task in enumerate(tasks):
        for name in task.after:
            rows[position[name]] |= 1 << v
    return rows


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


def dtype_name(dtype: torch.dtype) -> str:
    """A short name: f32, bf16, i64, b8, ..."""
    if dtype in _DTYPE_NAMES:
        return _DTYPE_NAMES[dtype]
    name = str(dtype).removeprefix("torch.")
    return name.replace("float", "f").replace("uint", "u").replace("int", "i")


@lru_cache(maxsize=4096)
def target_name(target: Callable[..., Any]) -> str:
    """How a person would name it: "aten.mm.default", "operator.getitem"."""
    if isinstance(target, OpOverload):
        return str(target)
    return f"{target.__module__.removeprefix('_')}.{target.__name__}"
