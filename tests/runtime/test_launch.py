"""Launches: arguments, the device's lock, streams and outputs."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.runtime.launch import Launcher
from tests.support.replaying import ReplayingDevice, frozen
from tests.support.schedules import scheduled, traced

Seen = list[tuple[bool, int, int]]


def two_branches(x: Tensor) -> Tensor:
    return x.exp() + x.sin()


@pytest.fixture
def launcher(device: ReplayingDevice) -> Launcher:
    return frozen(two_branches, torch.zeros(3), device=device)._launcher


@pytest.fixture
def args() -> list[Any]:
    return [torch.ones(3)]


@pytest.fixture
def seen(launcher: Launcher, args: list[Any], monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Of each launch: whether it held the device's lock, its distinct streams, its arguments."""
    seen, enqueue = Seen(), launcher.enqueue

    def watched(inputs: list[Any], static: Any, streams: Any) -> Any:
        seen.append((launcher.device.exclusive().is_held_here, len(set(streams)), len(args)))
        return enqueue(inputs, static, streams)

    monkeypatch.setattr(launcher, "enqueue", watched)
    return seen


def test_a_launch_holds_the_lock_has_streams_of_its_own_and_drops_its_arguments(
    launcher: Launcher, args: list[Any], seen: Seen
) -> None:
    launcher(args)
    assert seen == [(True, launcher.loaded.n_streams, 0)]
    assert launcher.loaded.n_streams == 2
    assert not launcher.device.exclusive().is_held_here


def test_a_launch_within_another_is_on_the_one_stream_that_it_is_called_on(
    launcher: Launcher, args: list[Any], seen: Seen
) -> None:
    with launcher.device.exclusive():
        (result,) = launcher(args)
    assert torch.equal(result, two_branches(torch.ones(3)))
    assert seen == [(True, 1, 0)]


def test_the_task_whose_line_raised_an_error_is_found(device: ReplayingDevice) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp() + y).sin()

    launcher = frozen(program, torch.zeros(3), torch.zeros(3), device=device)._launcher
    with pytest.raises(RuntimeError, match="size of tensor") as raised:
        launcher([torch.zeros(3), torch.zeros(4)])
    task = launcher.failing_task(raised.value)
    assert task is not None
    assert task.name == "add"
    assert launcher.failing_task(RuntimeError("of something else")) is None


def test_so_is_one_whose_result_has_no_name_and_one_whose_name_was_taken() -> None:
    def program(cache: Tensor, x: Tensor, i: Tensor) -> Tensor:
        fork = x.exp()
        cache[i] = fork.sin()
        return fork

    compiled = torch.compile(program, backend="nimble")
    compiled(torch.zeros(3, 2), torch.zeros(1, 2), torch.tensor([1]))
    with pytest.raises(IndexError, match="out of") as raised:
        compiled(torch.zeros(3, 2), torch.zeros(1, 2), torch.tensor([3]))
    (note,) = raised.value.__notes__
    assert "cache[i] = fork.sin()" in note


@dataclass(frozen=True)
class RefusedError(Exception):
    """An error that takes no notes."""

    code: int


def test_an_error_that_takes_no_notes_stays_as_it_is_and_one_raised_again_has_one() -> None:
    again = ValueError("again")
    errors: list[Exception] = [RefusedError(3), again, again]

    def fails(x: Tensor) -> Tensor:
        raise errors[0]

    with torch.library._scoped_library("launch_test", "FRAGMENT") as library:
        library.define("fails(Tensor x) -> Tensor")
        library.impl("fails", fails, "CPU")
        library.impl("fails", torch.empty_like, "Meta")
        compiled = torch.compile(lambda x: torch.ops.launch_test.fails(x + 1), backend="nimble")
        while errors:
            with pytest.raises(type(errors[0])) as raised:
                compiled(torch.ones(2))
            assert raised.value is errors.pop(0)
    assert len(again.__notes__) == 1


def test_an_error_of_an_operator_has_a_note_of_the_users_line() -> None:
    table = torch.randn(4, 3)

    def program(i: Tensor) -> Tensor:
        return table[i] + 1

    compiled = torch.compile(program, backend="nimble")
    compiled(torch.tensor([1, 3]))
    with pytest.raises(IndexError, match="out of") as raised:
        compiled(torch.tensor([1, 4]))
    line = program.__code__.co_firstlineno + 1
    (note,) = raised.value.__notes__
    assert note.startswith("This was in index of ")
    assert note.endswith(f", {__file__}:{line}: return table[i] + 1")


def test_the_device_settles_though_a_task_fails(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = list[Any]()
    monkeypatch.setattr(launcher.device, "settle", lambda *args: settled.append(args))
    monkeypatch.setattr(launcher, "enqueue", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launcher([torch.ones(3)])
    assert len(settled) == 1


def test_the_device_settles_the_outputs(
    launcher: Launcher, args: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = list[Any]()
    monkeypatch.setattr(launcher.device, "settle", lambda _, outputs: settled.extend(outputs))
    outputs = launcher(args)
    assert len(settled) == 1
    assert settled[0] is outputs[0]


class Subclass(Tensor):
    """A tensor whose operators give tensors of its class, unless `__torch_function__` is off."""


def test_what_a_subclass_does_to_functions_is_not_done_to_the_tasks(launcher: Launcher) -> None:
    (result,) = launcher([torch.ones(3).as_subclass(Subclass)])
    assert type(result) is Tensor


@pytest.mark.parametrize("are_static", [False, True])
def test_constants_are_fake_where_inputs_or_parameters_are(
    are_static: bool, device: ReplayingDevice
) -> None:
    def program(x: Tensor) -> Tensor:
        return x.exp() + torch.tensor([1.0, 2.0, 3.0])

    launcher = frozen(program, torch.zeros(3), device=device, are_static=are_static)._launcher
    assert launcher.graph.constants
    (result,) = launcher([FakeTensorMode().from_tensor(torch.ones(3))])
    assert isinstance(result, FakeTensor)


@pytest.mark.parametrize("are_static", [False, True])
@pytest.mark.parametrize(
    ("function", "mutates"), [(two_branches, False), (lambda x: x.add_(1), True)]
)
def test_a_program_that_writes_to_its_arguments_says_so(
    function: Any, mutates: bool, are_static: bool, device: ReplayingDevice
) -> None:
    run = frozen(function, torch.zeros(3), device=device, are_static=are_static)
    assert run._launcher.mutates == mutates


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_arguments_that_were_split_are_joined_in_their_order(are_static: list[bool]) -> None:
    result = traced(lambda *xs: torch.stack(xs), *[torch.zeros(2) for _ in are_static])
    pairs = zip(result.graph.inputs, are_static, strict=True)
    values = tuple(replace(value, static=is_static) for value, is_static in pairs)
    graph = scheduled(replace(result.graph, inputs=values))
    launcher = Launcher(graph, load(emit(graph), "joined.py"), {}, ReplayingDevice())
    args = list(range(len(are_static)))
    inputs, static = launcher.split(args)
    assert list(static) == [arg for arg in args if are_static[arg]]
    assert launcher.joined(inputs, static) == args
