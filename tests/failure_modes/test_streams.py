"""Rows 9 to 21: streams, events and captures. See tests/failure_modes/test_index.py."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.devices.cuda import POOL_SIZE, Cuda
from nimble_fx.errors import NimbleWarning, ScheduleError, UnsupportedError
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from nimble_fx.runtime.launch import Launcher
from tests.support.bits import assert_same_bits
from tests.support.eager import assert_inference_is_eagers
from tests.support.models import CASES, Branchy, Inception
from tests.support.replaying import ReplayingDevice
from tests.support.schedules import schedule_of, traced
from tests.support.source_lines import on_virtual, the_fallback
from tests.support.threads import assert_threads_do_not_mix


def test_09_a_side_stream_not_joined_or_used_before_it_forked() -> None:
    from nimble_fx.verify import verify_source

    on_virtual(Branchy())(torch.randn(2, 4))
    (program,) = nimble_fx.programs()
    verify_source(program.source)
    for line in ("        s1.wait_event(e.fork)\n", "        s0.wait_event(e.sigmoid)\n"):
        assert line in program.source
        with pytest.raises(ScheduleError):
            verify_source(program.source.replace(line, ""))


def test_10_events_are_fresh_in_each_capture_and_never_cross_its_border(
    device: ReplayingDevice,
) -> None:
    seen: list[object] = []
    events = device.events

    def watched(names: tuple[str, ...]) -> Any:
        made = events(names)
        seen.extend(vars(made).values())
        return made

    device.events = watched  # type: ignore[method-assign]
    assert_inference_is_eagers(CASES["branchy"])  # the device refuses events that cross
    assert len(set(map(id, seen))) == len(seen) > 2 * WARM_UPS


@pytest.mark.gpu
def test_11_pytorchs_pool_of_32_streams_wraps_round() -> None:
    streams: tuple[Any, ...] = Cuda.get(torch.device("cuda", 0)).streams(POOL_SIZE)
    assert len({stream.cuda_stream for stream in streams}) == POOL_SIZE == Cuda.stream_limit + 1


def test_12_after_a_fork_the_critical_branch_is_enqueued_first() -> None:
    def program(x: Tensor) -> Tensor:
        y = x + 1
        short = torch.sigmoid(y)
        return torch.relu(torch.tanh(torch.exp(y))) + short

    names = [task.name for task in schedule_of(program, torch.randn(2)).launching]
    assert names.index("exp") < names.index("sigmoid")


def test_13_within_a_capture_of_the_users_the_program_is_joined_into_it(
    device: ReplayingDevice,
) -> None:
    model, x = Inception().eval(), torch.randn(1, 8, 6, 6)
    options: dict[str, Any] = {"freeze": False, "policy": "nimble"}
    compiled = torch.compile(model, backend="nimble", options=options)
    with torch.no_grad():
        expected = compiled(x)
        users = device.capture(1, lambda streams: [compiled(x)], device.pool())
    users.replay()
    torch.testing.assert_close(users.outputs[0], expected)
    assert nimble_fx.programs()[0].graph.n_streams > 1


def test_14_called_on_a_stream_that_is_not_the_default(device: ReplayingDevice) -> None:
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        compiled(x)
        with device.streams(2)[1]:
            late = x * 2  # not there yet when the program is called
            ours = compiled(late)
        device.synchronize()
        assert_same_bits(ours, model(x * 2))
    assert device.n_captures == 1


@pytest.mark.gpu
def test_15_other_threads_do_not_break_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    real, cuda = torch.cuda.graph, Cuda.get(torch.device("cuda", 0))

    def watched(graph: Any, pool: Any, stream: Any, *, capture_error_mode: str) -> Any:
        modes.append(capture_error_mode)
        return real(graph, pool, stream, capture_error_mode)

    monkeypatch.setattr(torch.cuda, "graph", watched)
    cuda.capture(1, lambda streams: (), cuda.pool())
    assert modes == ["thread_local"]
    assert Cuda(torch.device("cuda", 1)).exclusive() is cuda.exclusive()


@pytest.mark.gpu
@pytest.mark.parametrize("was_enabled", [True, False])
def test_16_no_garbage_is_collected_during_a_capture_and_what_there_was_is_gone(
    was_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled, gone = list[bool](), list[bool]()
    capture, enqueue = Cuda.capture, Launcher.enqueue
    options: dict[str, Any] = {"policy": "nimble"}
    compiled = torch.compile(Branchy().cuda(), backend="nimble", options=options, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(2, 4, device="cuda"))  # Dynamo collects garbage when it compiles
    garbage: Any = Branchy()
    garbage.itself, alive = garbage, weakref.ref(garbage)

    def watched_capture(*args: Any, **options: Any) -> Any:
        gone.append(alive() is None)
        return capture(*args, **options)

    def watched_enqueue(*args: Any) -> Any:
        enabled.append(gc.isenabled())
        return enqueue(*args)

    monkeypatch.setattr(Cuda, "capture", watched_capture)
    monkeypatch.setattr(Launcher, "enqueue", watched_enqueue)
    (gc.enable if was_enabled else gc.disable)()
    del garbage
    try:
        with torch.no_grad():
            compiled(torch.randn(3, 4, device="cuda"))
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
    assert gone == [True]
    assert enabled == [False] * (WARM_UPS + 1)


def test_17_libraries_are_warmed_up_three_times_with_the_real_shapes(
    device: ReplayingDevice,
) -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble")(torch.randn(2, 4))
    assert (device.n_warm_ups, device.n_captures) == (WARM_UPS, 1)
    assert WARM_UPS >= 3


@pytest.mark.gpu
def test_18_a_capture_that_fails_midway_leaves_nothing_behind() -> None:
    """At every launch, and in more detail: tests/scenarios/test_faults.py."""

    def cubed(x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("out of memory")
        return x**3

    def program(x: Tensor) -> Tensor:
        return torch.ops.midway_test.cubed(x.exp()) + x.sin()

    with torch.library._scoped_library("midway_test", "FRAGMENT") as library:
        library.define("cubed(Tensor x) -> Tensor")
        library.impl("cubed", cubed, "CUDA")
        library.impl("cubed", torch.empty_like, "Meta")
        compiled, x = torch.compile(program, backend="nimble"), torch.randn(2, 4, device="cuda")
        with torch.no_grad():
            with pytest.warns(NimbleWarning, match="capture failed.*out of memory"):
                first = compiled(x)
            torch.testing.assert_close((first, compiled(x)), (program(x), program(x)))
    the_fallback("out of memory", node="cubed", code="torch.ops.midway_test.cubed(x.exp())")
    assert not torch.cuda.is_current_stream_capturing()


def test_19_two_threads_replay_one_graph(device: ReplayingDevice) -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble")
    inputs = [torch.full((2, 4), float(i)) for i in range(4)]
    with torch.no_grad():
        compiled(inputs[0])
    assert_threads_do_not_mix(compiled, model, inputs, n_calls=20)
    assert device.n_captures == 1


def test_20_several_devices_run_as_traced_and_say_so() -> None:
    with pytest.raises(UnsupportedError, match="uses a second device: cpu and meta"):
        traced(lambda x: x.to("meta") + 1, torch.randn(2))


@pytest.mark.gpu
def test_20_the_current_device_need_not_be_the_models() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    model, x = Branchy().to("cuda:1"), torch.randn(2, 4, device="cuda:1")
    with torch.no_grad(), torch.cuda.device(0):
        torch.testing.assert_close(torch.compile(model, backend="nimble")(x), model(x))


def test_21_a_copy_of_a_compiled_model_captures_again(device: ReplayingDevice) -> None:
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        compiled(x)
        copied = copy.deepcopy(compiled)
        loaded = pickle.loads(pickle.dumps(model))
        for other in (copied, torch.compile(loaded, backend="nimble")):
            assert_same_bits(other(x), model(x))
    assert device.n_captures == 3
