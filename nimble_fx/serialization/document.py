"""The text of a program file: versions, device, graph, constants and the emitted text.

Deterministic: the same program gives the same text. Each task is on its own line, so that files can
be compared line by line.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nimble_fx.devices import device_named
from nimble_fx.errors import FileError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.symbolic_sizes import unnamed_symbols
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.types import TensorType
from nimble_fx.serialization.atomic_write import write_atomically
from nimble_fx.serialization.graphs import decode_graph, encode_graph
from nimble_fx.serialization.json_field import Field
from nimble_fx.serialization.tensors import decode_tensor, encode_tensor
from nimble_fx.version import __version__

_FORMAT = 5
"""The version of the format; files of other versions cannot be read."""

_VERSIONS = {"program_file": _FORMAT, "nimble_fx": __version__, "torch": str(torch.__version__)}
_MEMBERS = (
    *("device", "hardware", "name", "provenance", "operators", "inputs", "constants", "tasks"),
    *("outputs", "urgent", "labels", "sizes", "parameters", "values", "source", "folded"),
)


def encode(program: ScheduledProgram) -> str:
    """The text of a program file, without the path of the emitted module.

    Raises:
        FileError: something in the program cannot be stored.
    """
    return _text(_VERSIONS | _document(program)) + "\n"


def check_sizes(graph: TaskGraph) -> None:
    """Checks that all sizes of inputs are inputs too, as `load` requires.

    Raises:
        FileError: one is not.
    """
    for name, symbols in unnamed_symbols(graph.inputs).items():
        raise FileError(
            f"{graph.name} cannot be saved: the size {min(symbols)} of its input {name} is no "
            "input of its own, as for nested tensors and other subclasses of torch.Tensor"
        )


def _document(program: ScheduledProgram) -> dict[str, Any]:
    graph, values = program.graph, program.constants
    return {
        "device": program.device,
        "hardware": program.hardware,
        **encode_graph(graph),
        "sizes": {name: n for name, n in sorted(program.sizes.items()) if name.isidentifier()},
        "parameters": _encode_parameters(program),
        "values": {of.name: encode_tensor(values[of.name], of) for of in graph.constants},
        "source": program.source.split("\n"),
        "folded": None if program.folded is None else _document(program.folded),
    }


def _encode_parameters(program: ScheduledProgram) -> dict[str, str]:
    """The model's names of parameters and buffers, by the graph's names.

    Raises:
        FileError: `load` would refuse a name.
    """
    for name, path in program.parameters.items():
        try:
            Field(path, name).line()
        except FileError as error:
            message = f"{program.graph.name} cannot be saved: its parameter or buffer {error}"
            raise FileError(message) from None
    return dict(sorted(program.parameters.items()))


def decode(text: str) -> ScheduledProgram:
    """The program in the text of a program file.

    Raises:
        FileError: it is not a program file, or was written by other versions.
    """
    document = Field(_parsed(text))
    members = document.members()
    _check_versions(members)
    return _program(document.record((*_VERSIONS, *_MEMBERS)))


def _program(members: Mapping[str, Field]) -> ScheduledProgram:
    _check_device(members)
    graph = decode_graph(members)
    _check_fits_device(graph, members["device"])
    return ScheduledProgram(
        graph=graph,
        source="\n".join(line.text() for line in members["source"].items()),
        constants=_decode_constants(graph, members["values"]),
        parameters=_decode_parameters(graph, members["parameters"]),
        device=members["device"].line(),
        hardware=members["hardware"].line(),
        sizes={name: n.integer() for name, n in members["sizes"].members().items()},
        folded=_decode_folded(members["folded"]),
    )


def absolute(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a file or a directory that the user names.

    Raises:
        FileError: it names the home of a user who does not exist.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise FileError(f"{os.fspath(path)}: {error}") from error


def write(path: Path, text: str) -> None:
    """Writes a text atomically.

    Raises:
        FileError: it cannot be written.
    """
    try:
        write_atomically(path.parent, path.name, text)
    except (OSError, ValueError) as error:  # a ValueError if the path has a null character
        raise FileError(f"{path} cannot be written: {error}") from error


def read(path: Path) -> str:
    """The text of a file.

    Raises:
        FileError: it cannot be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"it cannot be read: {error}") from error


def _text(document: Mapping[str, Any]) -> str:
    """JSON with each member on lines of its own."""
    return "{\n" + ",\n".join(f"{_json(k)}: {_lines(v)}" for k, v in document.items()) + "\n}"


def _lines(value: Any) -> str:
    """JSON with each item of a list, and each member of a program, on its own line."""
    if isinstance(value, dict) and value.keys() == set(_MEMBERS):
        return _text(value)
    if not isinstance(value, list) or not value:
        return _json(value)
    return "[\n" + ",\n".join(f"  {_json(item)}" for item in value) + "\n]"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FileError(f"it is not a program file: as JSON it fails with {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise FileError(f"an object has a member twice: {sorted(key for key, _ in pairs)}")
    return members


def _no_constant(name: str) -> None:
    raise FileError(f"it has {name}, which is not JSON")


def _check_versions(members: Mapping[str, Field]) -> None:
    """Checks that the versions are this one's; it runs first, because the rest depends on them."""
    if "program_file" not in members:
        raise FileError("it is not a program file: it has no member program_file")
    for name, here in _VERSIONS.items():
        there = members[name].value if name in members else None
        if type(there) is not type(here) or there != here:
            raise FileError(
                f"it was written with {name} {there!r}, and this is {name} {here!r}; compile the "
                "program again and save it"
            )


def _check_device(members: Mapping[str, Field]) -> None:
    """Checks that this machine has the device: a schedule is for one model of hardware."""
    name, hardware = members["device"].line(), members["hardware"].line()
    device = device_named(name)
    if device is None or hardware not in ("", device.hardware):
        here = "this machine has none" if device is None else f"here it is {device.hardware}"
        what = f"{name} ({hardware})" if hardware else name
        raise FileError(
            f"it was scheduled for {what}, and {here}; load it on such a machine, "
            "or compile the program again on this one"
        )


def _check_fits_device(graph: TaskGraph, device: Field) -> None:
    """Checks that all tensors are on the device (the CPU for the virtual one), and its streams."""
    name = device.line()
    found = device_named(name)
    limit = found.stream_limit if found is not None else None
    if limit is not None and graph.n_streams > limit:
        raise device.error(f"a device with {graph.n_streams} streams: it has {limit}")
    where = "cpu" if name.startswith("virtual") else name
    for value in graph.values:
        if isinstance(value.type, TensorType) and str(value.type.device) != where:
            raise device.error(f"the device of {value.name}, which is {value.type.device}")


def _decode_constants(graph: TaskGraph, field: Field) -> dict[str, Tensor]:
    members = field.record([value.name for value in graph.constants])
    try:
        return {of.name: decode_tensor(members[of.name], of) for of in graph.constants}
    except (RuntimeError, OverflowError) as error:  # more than torch can address
        raise FileError(f"a constant cannot be created: {error}") from error


def _decode_folded(field: Field) -> ScheduledProgram | None:
    """The program of the folded weights."""
    if field.value is None:
        return None
    folded = _program(field.record(_MEMBERS))
    if folded.folded is not None:
        raise field.error("a program that takes no folded weights itself")
    return folded


def _decode_parameters(graph: TaskGraph, field: Field) -> dict[str, str]:
    """The model's names of parameters and buffers, by names of the graph's inputs."""
    members = field.record((), [value.name for value in graph.inputs])
    return {name: path.line() for name, path in members.items()}
