"""Task graphs as JSON and back. Default values and derived attributes are left out."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from nimble_fx.errors import FileError
from nimble_fx.ir.operators import function_by_name, operators_by_name, serialized_name
from nimble_fx.ir.task_graph import Input, Source, Task, TaskGraph
from nimble_fx.ir.types import ScalarType, Size, TensorType, TupleType
from nimble_fx.ir.types import Type as ValueType
from nimble_fx.serialization.arguments import (
    MAX_DEPTH,
    constant_name,
    decode_argument,
    decode_device,
    decode_dtype,
    encode_argument,
)
from nimble_fx.serialization.json_field import Field
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import KERNELS, schema_of

Json = dict[str, Any]

_BITS = "is_conj", "is_neg"
"""The members of a tensor's type that are left out where they are false."""

_Record = TypeVar("_Record", Input, Task, Source)
_Item = TypeVar("_Item")


def encode_graph(graph: TaskGraph) -> Json:
    """The members of a program file for a graph.

    Raises:
        FileError: something in the graph cannot be stored.
    """
    return {
        "name": graph.name,
        "provenance": list(graph.provenance),
        "operators": _schemas(graph),
        "inputs": [_encode_record(value) for value in graph.inputs],
        "constants": [_encode_record(value) for value in graph.constants],
        "tasks": [_encode_record(task) for task in graph.tasks],
        "outputs": encode_argument(graph.outputs),
        "urgent": graph.urgent,
        "labels": list(graph.labels),
    }


def decode_graph(members: Mapping[str, Field]) -> TaskGraph:
    """The graph in the members of a program file; it is not verified.

    Raises:
        FileError: they are not a graph, or an operator is missing or has changed.
    """
    targets = _decode_operators(members["operators"])
    graph = TaskGraph(
        name=members["name"].line(),
        inputs=_each(_decode_input, members["inputs"]),
        constants=_each(_decode_input, members["constants"]),
        tasks=_each(partial(_decode_task, targets), members["tasks"]),
        outputs=_each(decode_argument, members["outputs"]),
        provenance=_each(Field.printable, members["provenance"]),
        urgent=_decode_urgent(members["urgent"]),
        labels=_each(Field.code, members["labels"]),
    )
    _check_orders(graph, members["tasks"])
    if len(graph.labels) not in (0, len(graph.outputs)):
        raise members["labels"].error("a label for each output, or for none")
    return graph


def _schemas(graph: TaskGraph) -> dict[str, str]:
    """The schema of each operator, because another build of torch may have changed it."""
    targets = {task.target for task in graph.tasks if isinstance(task.target, OpOverload)}
    named = {_encode_target(target): str(schema_of(target)) for target in targets}
    return dict(sorted(named.items()))


def _encode_record(record: Input | Task | Source) -> Json:
    """The attributes that differ from their defaults, in their order."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.init and value != field.default:
            found[field.name] = _ENCODERS.get(field.name, _plain)(value)
    return found


def _plain(value: Any) -> Any:
    """Numbers, text and tuples of names as JSON."""
    return list(value) if isinstance(value, tuple) else value


def _encode_target(target: Callable[..., Any]) -> str:
    name = serialized_name(target)
    if _is_compiled(target):
        raise FileError(
            f"{name} is a kernel of this process, compiled by Inductor or Triton, which no file "
            "holds; to save the program, compile it with kernels='aten', and without Triton "
            "kernels of the model's own"
        )
    if name is None:
        raise FileError(f"{target} is neither an operator nor a function of sizes")
    return name


def _is_compiled(target: Callable[..., Any]) -> bool:
    """Whether it is a kernel that was compiled in this process."""
    return getattr(target, "namespace", None) == KERNELS


def _encode_type(value_type: ValueType | None) -> Json | None:
    match value_type:
        case None:
            return None
        case TensorType(shape, stride, dtype, device):
            sizes = {"shape": list(shape), "stride": list(stride)}
            bits = {bit: True for bit in _BITS if getattr(value_type, bit)}
            return sizes | {"dtype": constant_name(dtype), "device": str(device)} | bits
        case ScalarType(expression):
            return {"expression": expression}
        case TupleType(items):
            return {"items": [_encode_type(item) for item in items]}


_ENCODERS: dict[str, Callable[[Any], Any]] = {
    "target": _encode_target,
    "args": encode_argument,
    "kwargs": encode_argument,
    "type": _encode_type,
    "source": _encode_record,
    "fused": lambda sources: [_encode_record(source) for source in sources],
}


def _decode_operators(field: Field) -> dict[str, OpOverload]:
    """The operator of each name, if its schema has not changed."""
    schemas = field.members()
    targets = operators_by_name(schemas)
    for name, schema in schemas.items():
        target = targets.get(name)
        if target is None or _is_compiled(target):
            raise FileError(
                f"operator {name!r} is not known in this process; import what defines it, or "
                "compile the program again"
            )
        if str(schema_of(target)) != schema.value:
            raise FileError(
                f"operator {name} differs from the file's: here it is {schema_of(target)}, "
                f"there {schema.text()}; compile the program again"
            )
    return targets


def _decode_target(known: Mapping[str, OpOverload], field: Field) -> Callable[..., Any]:
    """An operator of the table, or a function of sizes."""
    name = field.text()
    target = known.get(name) or function_by_name(name)
    if target is None:
        raise field.error("an operator of the file's table, or a function of sizes")
    return target


def _decode_type(field: Field, depth: int = 0) -> ValueType | None:
    if field.value is None:
        return None
    members = field.members()
    if depth > MAX_DEPTH:
        raise field.error(f"nested at most {MAX_DEPTH} deep")
    match sorted(members):
        case ["device", "dtype", *bits, "shape", "stride"] if set(bits) <= set(_BITS):
            shape, stride = (_each(_decode_size, members[key]) for key in ("shape", "stride"))
            if len(shape) != len(stride):
                raise field.error("a type with a stride for each size")
            device, dtype = decode_device(members["device"]), decode_dtype(members["dtype"])
            is_read = {bit: members[bit].boolean() for bit in bits}
            if is_read.get("is_conj") and not dtype.is_complex:
                raise field.error("conjugated only if its dtype is complex")
            return TensorType(shape, stride, dtype, device, **is_read)
        case ["expression"]:
            return ScalarType(members["expression"].line())
        case ["items"]:
            return TupleType(_each(partial(_decode_type, depth=depth + 1), members["items"]))
    raise field.error("a type: of a tensor, a number or a tuple")


def _decode_size(field: Field) -> Size:
    return field.line() if type(field.value) is str else field.integer()


def _decode_urgent(field: Field) -> int | None:
    return None if field.value is None else field.integer()


def _decode_source(field: Field) -> Source:
    return _decode_record(Source, ("file", "line", "code"), ("module",), field)


def _decode_kwargs(field: Field) -> tuple[tuple[str, Any], ...]:
    pairs = [tuple(pair.items()) for pair in field.items()]
    if any(len(pair) != 2 for pair in pairs):
        raise field.error("pairs of a keyword and an argument")
    kwargs = tuple((name.name(), decode_argument(value)) for name, value in pairs)
    if len(dict(kwargs)) != len(kwargs):
        raise field.error("keywords, each once")
    return kwargs


def _decode_input(field: Field) -> Input:
    return _decode_record(Input, ("name", "type"), ("holds", "static"), field)


def _decode_task(known: Mapping[str, OpOverload], field: Field) -> Task:
    optional = [f.name for f in fields(Task) if f.init]
    task = _decode_record(Task, ("name", "target"), optional, field, known)
    if task.target is operator.getitem and (len(task.args) != 2 or task.kwargs):
        raise field.error("a call of getitem with two arguments")
    return task


def _decode_record(
    kind: type[_Record],
    required: tuple[str, ...],
    optional: tuple[str, ...] | list[str],
    field: Field,
    known: Mapping[str, OpOverload] | None = None,
) -> _Record:
    members = field.record(required, optional)
    decoders = _DECODERS | {"target": partial(_decode_target, known or {})}
    return kind(**{name: decoders[name](member) for name, member in members.items()})


def _each(decode: Callable[[Field], _Item], field: Field) -> tuple[_Item, ...]:
    return tuple([decode(item) for item in field.items()])


_texts = partial(_each, Field.text)

_DECODERS: dict[str, Callable[[Field], Any]] = {
    "name": Field.name,
    "args": partial(_each, decode_argument),
    "kwargs": _decode_kwargs,
    "type": _decode_type,
    "index": Field.integer,
    "reads": _texts,
    "writes": _texts,
    "allocates": _texts,
    "holds": _texts,
    "ordered": Field.boolean,
    "static": Field.boolean,
    "after": _texts,
    "stream": Field.integer,
    "waits": _texts,
    "frees": _texts,
    "source": _decode_source,
    "fused": partial(_each, _decode_source),
    "file": Field.code,
    "line": Field.integer,
    "code": Field.code,
    "module": Field.code,
}


def _check_orders(graph: TaskGraph, field: Field) -> None:
    """Checks that orders are between launching tasks; `verify` checks the rest."""
    launching = {task.name for task in graph.launching}
    for task in graph.tasks:
        if not launching.issuperset(task.after):
            raise field.error(f"valid: {task.name} comes after a task that launches nothing")
