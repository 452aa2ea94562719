"""Programs to save, and ways to damage their files."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import nimble_fx
from nimble_fx.codegen.emit import emit
from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.cpu import Cpu
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.program import Program
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.tracing.aten_to_tasks import Traced
from tests.support.models import CASES, Branchy

Place = tuple[str | int, ...]

HOSTILE: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        7,
        10**12,
        2**62,
        2**63,
        10**30,
        1.5,
        "",
        "x",
        "x y",
        "nan",
        [],
        {},
        [[]],
        {"value": "x"},
    ),
    *('"""\nimport os', "\nimport os", "\\", '"""', "\ud800", "\0", "a\u2028b", "\x1b[2J"),
    *("__class__", "__debug__", "class", "torch", "aten", "p", "s0", "cpu", "cuda:0", "meta"),
    *("operator.attrgetter", "operator.call", "torch.import_ir_module", "math.nan"),
    *("aten::from_file", "aten::set_.source_Tensor", "aten::add.Tensor", "aten::no_such_thing"),
    *({"slice": [None]}, {"complex": [1, 2]}, {"float": "1"}, {"dtype": "float1"}, {"items": []}),
    json.loads("[" * 200 + "]" * 200),
    *(f"{'(' * 60}s0{' + 1)**32' * 60}", f"{'(' * 60}9{')**8' * 60}", "s0" + " + 1" * 9999),
)
"""What a member of a file may be replaced by."""


def branchy_program() -> Program:
    """`Branchy`, compiled for inference on two streams."""
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options={"policy": "nimble"})(torch.randn(2, 4))
    return nimble_fx.programs()[-1]


def program_of(traced: Traced, graph: TaskGraph, device: DeviceRuntime | None = None) -> Program:
    """A program that was never compiled: a trace and its schedule, on the CPU unless it is told."""
    traced_program = TracedProgram(traced, {}, device or Cpu(), Cpu.specs)
    status = CaptureStatus(reason="it is only saved")
    return Program(traced_program.scheduled(graph, emit(graph)), status)


def with_changes(program: Program, **changes: Any) -> Program:
    """The program with another graph, source, device or the like."""
    return replace(program, scheduled=replace(program.scheduled, **changes))


NIMBLE: dict[str, Any] = {"policy": "nimble"}
"""On a CPU "auto" is one stream, of which there is less to write."""


@cache
def programs_of_models() -> tuple[Program, ...]:
    """Each model's inference, a training step of those that train, one with symbolic sizes."""
    with torch._dynamo.config.patch(allow_rnn=True):
        for case in CASES.values():
            model = torch.compile(case.model().eval(), backend="nimble", options=NIMBLE)
            with torch.no_grad():
                model(*case.inputs())
            if case.trainable:
                outputs = torch.compile(case.model().train(), backend="nimble", options=NIMBLE)(
                    *case.inputs()
                )
                sum(leaf.sum() for leaf in pytree.tree_leaves(outputs)).backward()
    dynamic = torch.compile(
        CASES["branchy"].model(), backend="nimble", dynamic=True, options=NIMBLE
    )
    dynamic(torch.randn(3, 4)).sum().backward()
    return nimble_fx.programs()


def paths_in(value: Any, path: Place = ()) -> Iterator[Place]:
    """The way to each part of a JSON document, itself first."""
    yield path
    if isinstance(value, dict | list):
        keys: Any = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from paths_in(value[key], (*path, key))


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    """The text of a file, changed in one place: a member dropped, replaced, moved, or cut off.

    A member is replaced by something hostile, or by the same member of something else.
    """
    kinds = ["drop", "replace", "replace", "like", "like", "swap", "twice", "cut"]
    kind = draw(st.sampled_from(kinds))
    if kind == "cut":
        start = draw(st.integers(0, len(text)))
        return text[:start] + text[start + draw(st.integers(1, len(text))) :]
    document = json.loads(text)
    places = [path for path in paths_in(document) if path]
    path = draw(st.sampled_from(places))
    parent: Any = _at(document, path[:-1])
    key: Any = path[-1]
    if kind == "drop":
        del parent[key]
    elif kind == "replace":
        parent[key] = draw(st.sampled_from(HOSTILE))
    elif kind == "like":
        alike = [other for other in places if type(key) is str and other[-1] == key]
        parent[key] = copy.deepcopy(_at(document, draw(st.sampled_from(alike or [path]))))
    elif kind == "twice" and isinstance(parent, list):
        parent.insert(key, parent[key])
    else:
        other = draw(st.sampled_from(places))
        if other[: len(path)] != path and path[: len(other)] != other:
            there = _at(document, other[:-1])
            parent[key], there[other[-1]] = there[other[-1]], parent[key]
    return json.dumps(document)


def _at(document: Any, path: Place) -> Any:
    for key in path:
        document = document[key]
    return document
