"""A file edited at any place is refused, or computes what its operators and arguments say.

What a file says besides (types, memory, streams, waits, frees, indices of views, names) can only be
refused: it never changes a result, on a CPU or on the virtual device.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nimble_fx
from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.cpu import Cpu
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Arg, Input, Ref, TaskGraph
from nimble_fx.ir.types import TensorType
from tests.support.bits import assert_same_bits
from tests.support.playing import SEED
from tests.support.saved import mutations, program_of
from tests.support.trials import trials

MOST = 10**6
"""A tensor of more elements is not made."""


def by_its_operators(
    graph: TaskGraph, constants: Mapping[str, Tensor], inputs: Mapping[str, Any]
) -> list[Any]:
    """What a graph's operators compute, one by one in program order: schedule and claims aside."""
    values: dict[str, Any] = {**constants, **inputs}

    def value_of(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            if arg.name not in values:
                make(arg.name)
            return values[arg.name]
        if isinstance(arg, tuple):
            return [value_of(item) for item in arg]
        if isinstance(arg, slice):
            return slice(*map(value_of, (arg.start, arg.stop, arg.step)))
        return arg

    def make(name: str) -> None:
        task = graph.by_name[name]
        kwargs = {key: value_of(arg) for key, arg in task.kwargs}
        values[name] = task.target(*map(value_of, task.args), **kwargs)

    for task in sorted(graph.tasks, key=lambda task: task.index):
        if task.name not in values:
            make(task.name)
    return [value_of(output) for output in graph.outputs]


def made_for(value: Input, seed: int) -> Any:
    """An input of a type; None where it would be too large, or is no tensor."""
    kind = value.type
    if not isinstance(kind, TensorType) or math.prod(map(int, kind.shape)) > MOST:
        return None
    steps = zip(map(int, kind.shape), map(int, kind.stride), strict=True)
    span = 1 + sum((n - 1) * step for n, step in steps if n)
    if span > MOST:
        return None
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randint(0, 9, (span,), generator=generator).to(kind.dtype)
    return memory.as_strided(tuple(map(int, kind.shape)), tuple(map(int, kind.stride)))


@given(st.data())
def test_an_edited_file_is_refused_or_computes_what_its_operators_say(
    data: st.DataObject,
) -> None:
    trial = data.draw(trials(max_steps=5))
    devices: list[DeviceRuntime] = [Cpu(), Virtual(3)]
    device = data.draw(st.sampled_from(devices))
    with TemporaryDirectory() as folder:
        path = program_of(*trial.schedule(), device).save(Path(folder) / "edited.json")
        path.write_text(data.draw(mutations(path.read_text())))
        try:
            loaded = nimble_fx.load(path)
        except FileError:
            return
    assert_computes_what_its_operators_say(loaded)


def assert_computes_what_its_operators_say(program: nimble_fx.Program) -> None:
    """Calls it twice, which on the virtual device captures and replays it."""
    ours, expected = (
        {value.name: made_for(value, i) for i, value in enumerate(program.graph.inputs)}
        for _ in range(2)
    )
    if any(tensor is None for tensor in ours.values()):
        return
    static = {value.name for value in program.graph.inputs if value.static}
    paths = {path: ours[name] for name, path in program.parameters.items()}
    run = program.bind({name: ours[name] for name in static} | paths)
    given = [tensor for name, tensor in ours.items() if name not in static]
    for _ in range(2):
        torch.manual_seed(SEED)
        try:
            wanted = by_its_operators(program.graph, program.constants, expected)
        except Exception:  # the operators refuse what the file calls them with
            with suppress(Exception):
                run(*given)
            return
        torch.manual_seed(SEED)
        assert_same_bits(run(*given), wanted, strides=False)
        assert_same_bits(ours, expected, strides=False)


@pytest.mark.parametrize("n", [10**12, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("member", ["shape", "stride"])
def test_a_size_that_cannot_be_is_refused_before_any_work(
    tmp_path: Path, n: int, member: str
) -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    with torch.no_grad():
        torch.compile(doubled, backend="nimble")(torch.ones(9973))
    path = nimble_fx.programs()[-1].save(tmp_path / "huge.json")
    text = path.read_text()
    huge = text.replace("9973", str(n))
    assert huge != text
    if member == "stride":
        huge = text.replace('"stride": [1]', f'"stride": [{n}]')
        assert huge != text
    path.write_text(huge)
    if member == "shape" and n == 10**12:  # a machine may have as much memory
        run = nimble_fx.load(path).bind({})
        with pytest.raises(nimble_fx.InputError, match="has the shape"):
            run(torch.ones(9973))
    else:
        with pytest.raises(FileError, match=r"no tensor is as large|but it is|from 0 up"):
            nimble_fx.load(path)


@pytest.mark.parametrize(
    "size",
    [
        "9**8**8",
        f"{'(' * 60}s0{' + 1)**32' * 60}",
        f"{'(' * 60}9{')**8' * 60}",
        "s0" + " + 1" * 9999,
    ],
)
def test_a_size_that_takes_forever_to_compute_is_refused_at_once(tmp_path: Path, size: str) -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    with torch.no_grad():
        torch.compile(doubled, backend="nimble", dynamic=True)(torch.ones(3, 5))
    program = nimble_fx.programs()[-1]
    *_, width, _ = (value.name for value in program.graph.inputs)
    path = program.save(tmp_path / "huge.json")
    text = path.read_text()
    huge = text.replace(f'"stride": ["{width}", 1]', f'"stride": ["{size}", 1]')
    assert huge != text
    path.write_text(huge)
    with pytest.raises(FileError):
        nimble_fx.load(path)
