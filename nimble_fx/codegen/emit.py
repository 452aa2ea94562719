"""Emits a scheduled TaskGraph as the text of a Python module. Pure and deterministic.

The module imports only torch, and for sizes builtins, math and operator. Its `call` uses only
`with stream:`, `stream.wait_event(event)`, `event.record(stream)` and operators, so the same text
runs on every device.
"""

import keyword
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import PurePath
from typing import Any

import torch

from nimble_fx.ir.display import plural
from nimble_fx.ir.task_graph import Arg, Input, Ref, Source, Task, TaskGraph, ref_names, target_name
from nimble_fx.ir.types import ScalarType, TupleType
from nimble_fx.ir.unique_names import unique
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import is_kernel
from nimble_fx.version import __version__

_RESERVED = {
    *("aten", "builtins", "call", "complex", "e", "float", "fork", "inputs", "math", "operator"),
    *("p", "slice", "streams", "torch"),
}
_PYTHON_MODULES = {"builtins", "math", "operator"}
"""The modules of Python with functions of sizes."""
_INDENT = "    "


def emit(graph: TaskGraph) -> str:
    """The text of a module with `call(inputs, p, streams, e)` and tables of its arguments.

    Args:
        graph: scheduled: streams, waits and frees are set.
    """
    writer = _ModuleWriter(graph)
    return "\n".join([*writer.header(), *writer.call(), *writer.tables(), ""])


def task_of_line(graph: TaskGraph, line: str) -> Task | None:
    """The task that a line of the graph's module computes.

    Args:
        graph: the graph.
        line: the text of the line, without its indentation.

    Returns:
        The task; None if there is none, or several of different lines of the user's code.
    """
    writer = _ModuleWriter(graph)
    found = [task for task in graph.tasks if writer.first_line(task) == line]
    return found[0] if len({task.source for task in found}) == 1 else None


def headline(graph: TaskGraph) -> str:
    """A summary of the schedule: "Branchy.forward: 5 tasks on 2 streams, 1 wait"."""
    n_tasks, n_streams = len(graph.launching), graph.n_streams
    return (
        f"{graph.name}: {plural(n_tasks, 'task')} on {plural(n_streams, 'stream')}, "
        f"{plural(graph.n_waits, 'wait')}"
    )


class _ModuleWriter:
    """The parts of the module, as lines. Names are fx's, numbered where they would collide."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.inputs = [value for value in graph.inputs if not value.static]
        self.bound = [value for value in graph.inputs if value.static] + list(graph.constants)
        names = [*(value.name for value in self.inputs), *(task.name for task in graph.tasks)]
        streams = {f"s{i}" for i in range(graph.n_streams)}
        taken = _RESERVED | streams | set(keyword.kwlist)
        self._local = dict(zip(names, unique(names, taken), strict=True))
        bound = [value.name for value in self.bound]
        attributes = unique(bound, set(keyword.kwlist))
        self._names = self._local | {n: f"p.{a}" for n, a in zip(bound, attributes, strict=True)}

        self._items = _items_on_line(graph)

    def header(self) -> Iterator[str]:
        """The module's docstring, with the passes, and its imports."""
        yield f'"""{_in_docstring(headline(self.graph))}. Made by nimble_fx {__version__}.'
        yield ""
        yield _in_docstring("passes: " + ",\n        ".join(self.graph.provenance))
        yield '"""'
        yield "# fmt: off"
        if any(is_kernel(task.target) for task in self.graph.tasks):
            yield "# program.kernel_source(name): the text of a kernel of torch.ops.nimble_kernels"
        yield ""
        called = {target_name(task.target) for task in self.graph.tasks if not task.is_item}
        modules = sorted({name.split(".")[0] for name in called} & _PYTHON_MODULES)
        yield from (f"import {name}" for name in modules)
        if modules:
            yield ""
        yield "import torch"
        yield ""
        yield "aten = torch.ops.aten"

    def call(self) -> Iterator[str]:
        """The function `call`."""
        yield from ("", "", "def call(inputs, p, streams, e):")
        yield from (_INDENT + line if line else "" for line in self._body())

    def tables(self) -> Iterator[str]:
        """The tables of the arguments of `call`, by name."""
        events = ["fork"] if self.graph.forks else []
        events += [self._local[t.name] for t in self.graph.tasks if t.name in self.graph.recorded]
        yield from ("", "", "# the arguments of `call`: number of streams, attributes of e,")
        yield "# items of inputs, attributes of p"
        yield f"N_STREAMS = {self.graph.n_streams}"
        if self.graph.urgent is not None:
            yield "# the stream whose kernels a CUDA graph starts first if several are ready"
            yield f"URGENT = {self.graph.urgent}"
        yield "EVENTS = " + _tuple([f'"{name}"' for name in events])
        yield from self._table("INPUTS", self.inputs)
        yield from self._table("PARAMETERS", self.bound)
        yield from self._memory()

    def _table(self, title: str, values: list[Input]) -> Iterator[str]:
        yield f"{title} = ("
        for value in values:
            name = self._names[value.name].removeprefix("p.")
            yield f'{_INDENT}"{name}",{_comment(value.type)}'
        yield ")"

    def _memory(self) -> Iterator[str]:
        """The table of inputs and parameters that alias others, or are numbers without memory."""
        first: dict[str, str] = {}
        shared = {}
        for value in [*self.inputs, *self.bound]:
            name = self._names[value.name]
            owners = [first.setdefault(storage, name) for storage in value.holds]
            if owners != [name]:
                shared[name] = _tuple([f'"{owner}"' for owner in owners])
        if shared:
            yield "# inputs and parameters in the memory of others, or without memory (numbers)"
            yield "MEMORY = {"
            yield from (f'{_INDENT}"{name}": {owners},' for name, owners in shared.items())
            yield "}"

    def _body(self) -> Iterator[str]:
        yield f'"""{self._docstring()}"""'
        used = {name for task in self.graph.tasks for name in task.uses}
        used.update(ref_names(self.graph.outputs))
        for i, value in enumerate(self.inputs):
            if value.name in used:
                yield f"{self._names[value.name]} = inputs[{i}]{_comment(value.type)}"
        yield "inputs.clear()"
        names = [f"s{i}" for i in range(self.graph.n_streams)]
        if names:
            yield f"{', '.join(names)}{',' if len(names) == 1 else ''} = streams"
        if self.graph.forks:
            yield "e.fork.record(s0)"
        yield from self._schedule()
        if self.graph.joins:
            yield "# the caller's stream waits for the ends of the side streams"
        yield from (f"s0.wait_event(e.{self._local[name]})" for name in self.graph.joins)
        yield from self._return()

    def _return(self) -> Iterator[str]:
        """The outputs; where some are labeled, on lines of their own."""
        outputs = [self._text(value) for value in self.graph.outputs]
        if not any(self.graph.labels):
            yield f"return {_tuple(outputs)}"
            return
        yield "return ("
        labels = [" ".join(label.split()) for label in self.graph.labels]
        labeled = zip(labels, outputs, strict=True)
        for label, group in groupby(labeled, key=itemgetter(0)):
            texts = [text for _, text in group]
            if label and len(texts) > 1:
                yield f"{_INDENT}# {label}"
            of_one = f"  # {label}" if label and len(texts) == 1 else ""
            yield f"{_INDENT}{', '.join(texts)},{of_one}"
        yield ")"

    def _docstring(self) -> str:
        returns = _tuple([self._text(value) for value in self.graph.outputs])
        sides = self.graph.n_streams - 1
        where = "s0, the current stream" + (f", and {sides} more" if sides > 0 else "")
        shown = returns if len(returns) < 80 else f"{len(self.graph.outputs)} values"
        return f"Enqueue on {where}; clear `inputs`; return {shown}."

    def _schedule(self) -> Iterator[str]:
        """The tasks in launch order, in one block for each run of a stream, with source lines."""
        shown: tuple[Source, ...] = ()
        on_lines = {item.name for items in self._items.values() for item in items}
        written = [task for task in self.graph.tasks if task.name not in on_lines]
        for stream, tasks in _blocks(written):
            if stream is not None:
                yield f"with s{stream}:"
            indent = "" if stream is None else _INDENT
            for task, waiting in _with_waits(tasks):
                sources = () if task.source is None else (*task.fused, task.source)
                if sources != shown:
                    shown = sources
                    yield from (f"{indent}# {line}" for line in map(_line, sources or [None]))
                for line in (*self._waits(waiting), *self._task(task)):
                    yield indent + line

    def _waits(self, task: Task | None) -> Iterator[str]:
        if task is None:
            return
        if task.name in self.graph.forks:
            yield f"s{task.stream}.wait_event(e.fork)"
        yield from (f"s{task.stream}.wait_event(e.{self._local[name]})" for name in task.waits)

    def first_line(self, task: Task) -> str:
        """The line that computes a task."""
        return next(self._task(task))

    def _task(self, task: Task) -> Iterator[str]:
        items = self._items.get(task.name, ())
        named = items or (() if task.name in task.frees else (task,))
        assigned = f"{', '.join([self._local[each.name] for each in named])} = " if named else ""
        selected, shown = "", task.type
        if len(items) == 1:
            selected, shown = f"[{self._text(items[0].args[1])}]", items[0].type
        yield f"{assigned}{self._call(task)}{selected}{_comment(shown)}"
        frees = [name for each in (task, *items) for name in each.frees if name != task.name]
        if frees:
            yield f"del {', '.join([self._local[name] for name in frees])}"
        if task.name in self.graph.recorded:
            yield f"e.{self._local[task.name]}.record(s{task.stream})"

    def _call(self, task: Task) -> str:
        args = [self._text(arg) for arg in task.args]
        if task.is_item:
            return f"{args[0]}[{args[1]}]"
        args += [f"{key}={self._text(value)}" for key, value in task.kwargs]
        return f"{callee_text(task.target)}({', '.join(args)})"

    def _text(self, arg: Arg) -> str:
        return text_of(arg, self._names)


def _in_docstring(text: str) -> str:
    """Any text, such as an option of a user's pass, as part of a docstring."""
    return text.replace("\\", r"\\").replace('"""', r"\"\"\"")


def _line(source: Source | None) -> str:
    """A line of the user's code, on a single line in any case: "model.py:12  y = relu(x)"."""
    if source is None:
        return "from no recorded line of the model"
    place = source.place(PurePath(source.file).name)
    return "  ".join([" ".join(text.split()) for text in (place, source.code)])


def _items_on_line(graph: TaskGraph) -> dict[str, list[Task]]:
    """For each operator of which one result is used, or all are, the tasks that select them.

    They are written on the operator's line, so that the tuple of results has no name.
    """
    users: dict[str, list[Task]] = {}
    for task in graph.tasks:
        for name in task.uses:
            users.setdefault(name, []).append(task)
    found = {}
    for i, task in enumerate(graph.tasks):
        items = users.get(task.name, [])
        following = graph.tasks[i + 1 : i + 1 + len(items)]
        is_line = len(items) == 1 or _are_all_results(following, task)
        if is_line and not task.is_item and _free_only(items, task):
            found[task.name] = items
    return found


def _are_all_results(items: Sequence[Task], operator: Task) -> bool:
    """Whether tasks select the results of an operator, all of them in their order."""
    n_results = len(operator.type.items) if isinstance(operator.type, TupleType) else 0
    results = [(Ref(operator.name), k) for k in range(n_results)]
    return [item.args for item in items if item.is_item] == results


def _free_only(items: Sequence[Task], operator: Task) -> bool:
    """Whether tasks are items of an operator and free its tuple of results, and else themselves."""
    return operator.name in (name for item in items for name in item.frees) and all(
        item.is_item and {operator.name, item.name}.issuperset(item.frees) for item in items
    )


def _blocks(tasks: Sequence[Task]) -> Iterator[tuple[int | None, list[Task]]]:
    """Runs of tasks on one stream. Items and sizes join the task before, views the task after."""
    block: list[Task] = []
    waiting: list[Task] = []
    stream: int | None = None
    for task in tasks:
        if not task.launches:
            (block if _is_of_result(task) and block and not waiting else waiting).append(task)
            continue
        if task.stream != stream and block:
            yield stream, block
            block = []
        stream = task.stream
        block += [*waiting, task]
        waiting = []
    yield stream, block + waiting


def _with_waits(tasks: Sequence[Task]) -> Iterator[tuple[Task, Task | None]]:
    """Each task of a block with the one whose waits are written before it.

    The waits of a task come before the views that it uses: a view launches nothing, but a reader
    expects it after the wait for its base.
    """
    before = dict(enumerate(tasks))
    for i, task in enumerate(tasks):
        first = i
        while task.launches and first > 0 and _is_view(tasks[first - 1]):
            first -= 1
        if first != i:
            before[first] = before.pop(i)
    for i, task in enumerate(tasks):
        yield task, before.get(i)


def _is_of_result(task: Task) -> bool:
    """Whether it is an item or a size of an operator's result."""
    return isinstance(task.type, ScalarType) or task.is_item


def _is_view(task: Task) -> bool:
    return not task.launches and not _is_of_result(task)


@lru_cache(maxsize=4096)
def callee_text(target: Callable[..., Any]) -> str:
    """A target as Python source: "aten.add.Tensor", "torch.ops.mine.scale.default"."""
    name = target_name(target)
    is_custom = isinstance(target, OpOverload) and target.namespace != "aten"
    return f"torch.ops.{name}" if is_custom else name


def text_of(arg: Arg, names: Mapping[str, str]) -> str:
    """An argument as Python source; values by their `names`."""
    if isinstance(arg, Ref):  # the most frequent kinds first; isinstance is faster than patterns
        return names[arg.name]
    if isinstance(arg, (tuple, list)):
        return f"[{', '.join([text_of(item, names) for item in arg])}]"
    match arg:
        case slice():
            return f"slice({', '.join(text_of(x, names) for x in (arg.start, arg.stop, arg.step))})"
        case torch.device():
            return f'torch.device("{arg}")'
        case float() if not math.isfinite(arg):
            return f'float("{arg}")'
        case complex():
            return f"complex({text_of(arg.real, names)}, {text_of(arg.imag, names)})"
    return repr(arg)


def _comment(value_type: Any) -> str:
    return "" if value_type is None else f"  # {value_type}"


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
