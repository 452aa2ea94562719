"""Parses the text of an emitted module into a task graph.

`call` may have only the statements of emitted modules. Any other is refused with its line, because
it could not be proved.
"""

import ast
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, TypeGuard

from nimble_fx.errors import ScheduleError
from nimble_fx.ir.locked_ast import syntax_tree
from nimble_fx.ir.task_graph import Arg, Ref, Source, Task, TaskGraph
from nimble_fx.verify.parse.expressions import argument, callee
from nimble_fx.verify.parse.memory import ValueStorages
from nimble_fx.verify.parse.streams import StreamState
from nimble_fx.verify.parse.tables import ModuleTables, read_module

FILE = "<module>"
"""The file name of the text in messages."""

_RESERVED = {
    *("aten", "builtins", "call", "complex", "e", "float", "inputs", "math", "operator"),
    *("p", "slice", "streams", "torch"),
}


@dataclass(frozen=True)
class ParsedModule:
    """A parsed emitted module.

    Attributes:
        graph: its tasks in the order of the text, each with its line as its source. Parameters
            are named as in the text: "p.weight".
        forks: the tasks that wait for the start of stream 0.
        joins: the tasks that stream 0 waits for at the end.
        idle_waits: the side streams whose last wait no task follows.
        n_parameters: the number of parameters that it takes.
    """

    graph: TaskGraph
    forks: tuple[str, ...]
    joins: tuple[str, ...]
    idle_waits: tuple[str, ...]
    n_parameters: int


def parse(text: str, expected: TaskGraph | None = None) -> ParsedModule:
    """Parses an emitted module. Cost: O(length of the text).

    Args:
        text: the module.
        expected: the schedule that it should have, which alone says whether an operator that may
            return a view or a copy returns a copy.

    Raises:
        ScheduleError: a line is not one that emitted modules have.
    """
    try:
        module = syntax_tree(text, FILE)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ScheduleError(f"the text is not a Python module: {error}") from error
    try:
        return _read(module, text, expected)
    except RecursionError as error:
        raise ScheduleError(f"an expression in the text is nested too deeply: {error}") from error


def _read(module: ast.Module, text: str, expected: TaskGraph | None) -> ParsedModule:
    lines = StringIO(text, newline=None).read().split("\n")  # ast counts lines this way
    function, tables = read_module(module, lines)
    reader = _Reader(tables, expected, lines)
    for node, stream in _statements(function):
        try:
            reader.read(node, stream)
        except ScheduleError as error:
            source = reader.source()
            raise ScheduleError(f"{source}: {source.code}\n{error}") from error
    return reader.finish()


def _is_position(index: object) -> TypeGuard[int]:
    """Whether an index selects an item; of a tensor, one that is a bool makes a copy."""
    return type(index) is int and index >= 0


def _statements(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, str | None]]:
    """The statements in order, each with the stream of its `with` block."""
    for node in function.body:
        match node:
            case ast.With([ast.withitem(ast.Name(stream), None)], body):
                yield from ((inner, stream) for inner in body)
            case _:
                yield node, None


class _Reader:
    """Parses statement by statement. A draft of a task has its attributes by name."""

    def __init__(
        self, tables: ModuleTables, expected: TaskGraph | None, lines: Sequence[str]
    ) -> None:
        self._tables = tables
        self._lines, self._line = lines, 1
        self._source = Source(FILE, 0, "")
        self._streams = StreamState()
        self._memory = ValueStorages(tables, expected)
        self._values = {f"p.{name}": Ref(f"p.{name}") for name in tables.parameters}
        self._drafts: list[dict[str, Any]] = []
        self._on_line: dict[str, dict[str, Any]] = {}
        self._has_cleared = False
        self._outputs: tuple[Arg, ...] | None = None
        self._joins: tuple[str, ...] = ()

    def source(self) -> Source:
        """The line that is being parsed."""
        if self._source.line != self._line:  # once for all items of a line
            self._source = Source(FILE, self._line, self._lines[self._line - 1].strip())
        return self._source

    def read(self, node: ast.stmt, stream: str | None) -> None:
        """Parses the next statement, which is in the block of a stream."""
        self._line = node.lineno
        if self._outputs is not None:
            raise ScheduleError("nothing follows the return")
        if stream is not None:
            self._streams.index(stream)
        match node:
            case ast.Assign([ast.Name(name)], value):
                self._assign(name, value, stream)
            case ast.Delete(targets):
                self._drop([self._value(target) for target in targets])
            case ast.Expr(value):
                self._expression(value, stream)
            case ast.Assign([ast.Tuple(names)], ast.Name("streams")):
                self._streams.unpack([ast.unparse(name) for name in names])
                if taken := [name for name in self._values if self._streams.has(name)]:
                    raise ScheduleError(f"{taken[0]} is another value's name")
            case ast.Assign([ast.Tuple(targets)], ast.Call() as call):
                self._unpack(targets, call, stream)
            case ast.Return(ast.Tuple(values)):
                self._outputs = tuple(argument(value, self._values) for value in values)
                self._joins = self._streams.joins()
            case _:
                raise ScheduleError("emitted modules have no such statement")

    def finish(self) -> ParsedModule:
        """The module, once all statements have been parsed."""
        if self._outputs is None or not self._has_cleared:
            raise ScheduleError("call must clear inputs once, and return a tuple at its end")
        self._tables.check(self._streams.n_streams, self._streams.recorded)
        self._memory.complete()
        graph = TaskGraph(
            name=FILE,
            inputs=tuple(self._memory.inputs(self._tables)),
            constants=(),
            tasks=tuple(Task(**draft) for draft in self._drafts),
            outputs=self._outputs,
            urgent=self._tables.urgent,
        )
        forks = tuple(self._streams.forks)
        n_parameters = len(self._tables.parameters)
        return ParsedModule(graph, forks, self._joins, self._streams.idle_waits, n_parameters)

    def _assign(self, name: str, value: ast.expr, stream: str | None) -> None:
        """Defines a value: an input, or the result of a task."""
        match value:
            case ast.Subscript(ast.Name("inputs"), index):
                self._take_input(name, index)
            case _:
                self._check_free(name)
                self._task(name, value, stream)

    def _expression(self, value: ast.expr, stream: str | None) -> None:
        """Parses a call on inputs or events, a docstring, or a task whose value is dropped."""
        match value:
            case ast.Call(ast.Attribute(owner, method), arguments, []) if self._is_bookkeeping(
                owner, method, arguments
            ):
                pass
            case ast.Constant(str()):
                pass
            case _:
                name = f"<line {self._line}>"
                self._task(name, value, stream)
                self._drop([name])

    def _take_input(self, name: str, index: ast.expr) -> None:
        match index:
            case ast.Constant(i) if _is_position(i) and i < len(self._tables.inputs):
                if self._has_cleared or self._tables.inputs[i] != name:
                    raise ScheduleError(f"input {i} is {self._tables.inputs[i]}, until cleared")
                self._check_free(name)
                self._values[name] = Ref(name)
            case _:
                raise ScheduleError(f"INPUTS has {len(self._tables.inputs)} names")

    def _check_free(self, name: str) -> None:
        if name in self._values or name in _RESERVED or self._streams.has(name):
            raise ScheduleError(f"{name} is already another value's name, or reserved")

    def _value(self, node: ast.expr) -> str:
        """The name of a value."""
        if not isinstance(node, ast.Name) or node.id not in self._values:
            raise ScheduleError(f"{ast.unparse(node)} is not a value")
        return node.id

    def _is_bookkeeping(self, owner: ast.expr, method: str, arguments: Sequence[ast.expr]) -> bool:
        """Whether it is a call on inputs or events, which then takes effect."""
        match owner, method, arguments:
            case ast.Name("inputs"), "clear", [] if not self._has_cleared:
                self._has_cleared = True
            case ast.Name(stream), "wait_event", [ast.Attribute(ast.Name("e"), event)]:
                self._streams.wait(stream, event)
            case ast.Attribute(ast.Name("e"), event), "record", [ast.Name(stream)]:
                self._streams.record(event, stream)
            case _:
                return False
        return True

    def _task(self, name: str, value: ast.expr, stream: str | None) -> None:
        """Defines a value: by a call, by an item of a value, or by an item of a call."""
        match value:
            case ast.Call():
                self._call(name, value, stream)
            case ast.Subscript(ast.Name(), ast.Constant(index)) if _is_position(index):
                self._item(name, self._value(value.value), index)
            case ast.Subscript(ast.Call() as call, ast.Constant(index)) if _is_position(index):
                self._items({index: name}, call, stream)
            case _:
                raise ScheduleError("a value must be a call, or an item of a call or a value")

    def _unpack(self, targets: Sequence[ast.expr], call: ast.Call, stream: str | None) -> None:
        """Defines a value for each result of a call."""
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if not names or len({*names}) < len(targets):
            raise ScheduleError("results must be assigned to different names")
        for name in names:
            self._check_free(name)
        several = self._items(dict(enumerate(names)), call, stream)
        self._memory.check_unpacked(several, len(names))

    def _items(self, names: Mapping[int, str], call: ast.Call, stream: str | None) -> str:
        """Defines values by items of a call, of which the last frees the tuple of results.

        Returns:
            The name of the tuple.
        """
        several = f"<call of {next(iter(names.values()))}>"
        self._call(several, call, stream)
        for index, name in names.items():
            self._item(name, several, index)
        self._drafts[-1]["frees"] = (several,)
        self._on_line = {draft["name"]: draft for draft in self._drafts[-1 - len(names) :]}
        return several

    def _call(self, name: str, call: ast.Call, stream: str | None) -> None:
        draft = self._draft(name)
        draft["target"] = callee(call.func, self._tables.modules)
        draft["args"] = tuple([argument(arg, self._values) for arg in call.args])
        draft["kwargs"] = tuple([self._keyword(keyword) for keyword in call.keywords])
        if len(dict(draft["kwargs"])) != len(draft["kwargs"]):
            raise ScheduleError("a keyword argument is repeated")
        self._memory.call(draft)
        if stream is not None and (draft["reads"] or draft["writes"]):
            draft["stream"] = self._streams.index(stream)
            draft["waits"] = self._streams.launch(name, draft["stream"])
        self._add(draft)

    def _keyword(self, keyword: ast.keyword) -> tuple[str, Arg]:
        if keyword.arg is None:
            raise ScheduleError("keyword arguments must be named one by one")
        return keyword.arg, argument(keyword.value, self._values)

    def _item(self, name: str, several: str, index: int) -> None:
        draft = self._draft(name)
        draft.update(target=operator.getitem, args=(Ref(several), index))
        self._memory.item(draft)
        self._add(draft)

    def _draft(self, name: str) -> dict[str, Any]:
        index, source = len(self._drafts), self.source()
        return {"name": name, "index": index, "source": source, "frees": ()}

    def _add(self, draft: dict[str, Any]) -> None:
        self._drafts.append(draft)
        self._values[draft["name"]] = Ref(draft["name"])
        self._on_line = {draft["name"]: draft}

    def _drop(self, names: Sequence[str]) -> None:
        """Frees values after the last task.

        After a line with an operator and its items, the operator frees its operands, and each item
        frees only itself.
        """
        if not self._on_line:
            raise ScheduleError("no task precedes this del")
        first = next(iter(self._on_line))
        frees = dict[str, list[str]]()
        for name in names:
            frees.setdefault(name if name in self._on_line else first, []).append(name)
        for last_user, freed in frees.items():
            draft = self._on_line[last_user]
            draft["frees"] = (*draft["frees"], *freed)
