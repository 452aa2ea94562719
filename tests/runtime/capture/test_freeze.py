"""Freezing, on a device that captures and replays on the CPU."""

import copy
import re
import warnings
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import nimble_fx
from nimble_fx.errors import FallbackError, NimbleWarning
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from nimble_fx.runtime.capture.graph_cache import BREAK_EVEN_CALLS, EARLY_EVICTIONS_PER_GRAPH
from nimble_fx.runtime.launch import Launcher
from tests.support.eager import (
    assert_inference_is_eagers,
    assert_same,
    assert_training_is_eagers,
)
from tests.support.models import CASES, Branchy
from tests.support.replaying import ReplayingDevice, frozen
from tests.support.threads import assert_threads_do_not_mix


@pytest.mark.parametrize("name", CASES)
def test_replays_give_eagers_results_state_and_mutations(
    name: str, device: ReplayingDevice
) -> None:
    assert_inference_is_eagers(CASES[name], n_calls=4)
    assert device.n_captures == len(nimble_fx.programs())
    assert device.n_replays >= 4 * (device.n_captures > 0)


@pytest.mark.parametrize("name", ["googlenet", "transformer_dropout", "dropout", "tables"])
def test_training_replays_give_eagers_gradients_and_statistics(
    name: str, device: ReplayingDevice
) -> None:
    assert_training_is_eagers(CASES[name])
    assert device.n_captures == 2
    assert device.n_replays == 6


def test_the_inputs_are_emptied_and_may_be_dropped_by_the_caller(device: ReplayingDevice) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=device)
    args = [torch.ones(2)]
    run(args)
    assert args == []
    assert torch.equal(run([torch.full((2,), 2.0)])[0], torch.full((2,), 2.0).exp())


def test_moved_parameters_are_captured_again(device: ReplayingDevice) -> None:
    model = Branchy()
    eager = copy.deepcopy(model)
    compiled, x = torch.compile(model, backend="nimble"), torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        for net in (model, eager):
            net.a.weight.data = torch.full((4, 4), 0.5)
        assert_same(compiled(x), eager(x))
        assert_same(compiled(x), eager(x))
    assert device.n_captures == 2


def test_a_program_that_modules_share_keeps_a_capture_for_each(device: ReplayingDevice) -> None:
    blocks = [Branchy() for _ in range(3)]
    compiled = [torch.compile(block, backend="nimble") for block in blocks]
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            for ours, block in zip(compiled, blocks, strict=True):
                assert_same(ours(x), block(x))
    assert device.n_captures == 3


def test_parameters_that_move_in_each_call_are_given_up_on(device: ReplayingDevice) -> None:
    model = Branchy()
    options: dict[str, Any] = {"max_graphs": 2}
    compiled, x = torch.compile(model, backend="nimble", options=options), torch.randn(2, 4)
    limit = EARLY_EVICTIONS_PER_GRAPH * 2
    with torch.no_grad():
        for i in range(limit):
            model.a.weight.data = torch.full((4, 4), float(i))
            assert_same(compiled(x), model(x))
        model.a.weight.data = torch.ones(4, 4)
        with pytest.warns(NimbleWarning, match="parameters change too often"):
            assert_same(compiled(x), model(x))
        assert_same(compiled(x), model(x))
    assert device.n_captures == limit


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls.add_(1)
        return x * 2


def test_a_call_that_is_an_error_because_it_would_run_unfrozen_changes_nothing(
    device: ReplayingDevice,
) -> None:
    model = Counter()
    options: dict[str, Any] = {"max_graphs": 1, "on_fallback": "error"}
    compiled = torch.compile(model, backend="nimble", dynamic=True, options=options)

    def is_done(rows: int) -> bool:
        before = int(model.n_calls)
        try:
            compiled(torch.randn(rows, 4))
        except FallbackError:
            assert int(model.n_calls) == before
            return False
        return True

    with torch.no_grad(), pytest.warns(NimbleWarning, match="called with more sizes than graphs"):
        done = [is_done(rows) for rows in range(2, 6 + EARLY_EVICTIONS_PER_GRAPH)]
    assert done.count(False) >= 2
    assert int(model.n_calls) == done.count(True)


def test_what_comes_often_is_captured_even_where_most_calls_are_not(
    device: ReplayingDevice,
) -> None:
    model = Branchy()
    options: dict[str, Any] = {"max_graphs": 1, "on_fallback": "silent"}
    compiled = torch.compile(model, backend="nimble", dynamic=True, options=options)
    with torch.no_grad():
        for rows in range(2, 4 + EARLY_EVICTIONS_PER_GRAPH):
            compiled(torch.randn(rows, 4))
        before = device.n_captures
        for _ in range(BREAK_EVEN_CALLS + 2):
            x = torch.randn(30, 4)
            assert_same(compiled(x), model(x))
    assert device.n_captures == before + 1


def test_a_frozen_program_and_one_that_calls_it_do_not_wait_for_each_other() -> None:
    options: dict[str, Any] = {"device": "virtual"}
    inner = torch.compile(lambda x: (x * 2).relu() + x.sin(), backend="nimble", options=options)

    def outer(x: Tensor) -> Tensor:
        return torch.ops.nimble_tests.inner(x + 1) * 2

    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library, torch.no_grad():
        library.define("inner(Tensor x) -> Tensor")
        library.impl("inner", lambda x: inner(x.clone()), "CPU")
        library.impl("inner", torch.empty_like, "Meta")
        calls = torch.compile(outer, backend="nimble", options=options | {"freeze": False})
        calls(torch.ones(3))
        inner(torch.ones(3))
        threads = [
            Thread(target=call_often, args=(run, torch.ones(3)), daemon=True)
            for run in (calls, inner)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)


def call_often(run: Callable[[Tensor], object], x: Tensor) -> None:
    with torch.no_grad():
        for _ in range(300):
            run(x)


def test_parameters_that_move_once_a_graph_has_paid_off_are_captured_again_without_end(
    device: ReplayingDevice,
) -> None:
    model = Branchy()
    options: dict[str, Any] = {"max_graphs": 1}
    compiled, x = torch.compile(model, backend="nimble", options=options), torch.randn(2, 4)
    with torch.no_grad():
        for i in range(EARLY_EVICTIONS_PER_GRAPH + 2):
            model.a.weight.data = torch.full((4, 4), float(i))
            for _ in range(BREAK_EVEN_CALLS):
                assert_same(compiled(x), model(x))
    assert device.n_captures == EARLY_EVICTIONS_PER_GRAPH + 2


def test_within_a_capture_of_the_users_the_program_runs_inline(device: ReplayingDevice) -> None:
    x = torch.ones(2)
    run = frozen(lambda x: x.exp() + x.sin(), torch.zeros(2), device=device)
    users = device.capture(1, lambda streams: run([x]), device.pool())
    for value in (1.0, 2.0):
        x.fill_(value)
        users.replay()
        assert torch.equal(users.outputs[0], x.exp() + x.sin())
    assert (device.n_captures, device.n_warm_ups) == (1, 0)


def test_nothing_else_is_launched_on_the_device_while_a_graph_is_captured(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, enqueue = list[bool](), Launcher.enqueue

    def watched(launcher: Launcher, *args: Any) -> Any:
        held.append(device.exclusive().is_held_here)
        return enqueue(launcher, *args)

    monkeypatch.setattr(Launcher, "enqueue", watched)
    frozen(torch.exp, torch.zeros(2), device=device)([torch.zeros(2)])
    assert held == [True] * (WARM_UPS + 1)
    assert not device.exclusive().is_held_here


def test_a_call_with_fake_tensors_captures_nothing(device: ReplayingDevice) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=device)
    (result,) = run([FakeTensorMode().from_tensor(torch.ones(2))])
    assert isinstance(result, FakeTensor)
    assert device.n_warm_ups == device.n_captures == 0


@pytest.mark.parametrize(("n", "fakes"), [(0, {0, 1}), (2, {1})])
def test_nor_does_one_with_fake_parameters_replay_what_was_captured_with_others(
    n: int, fakes: set[int], device: ReplayingDevice
) -> None:
    """Those without elements have one address, which is also that of a fake one."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        return a.exp() + b.sin()

    values = [torch.zeros(n), torch.zeros(n)]
    run, mode = (
        frozen(program, *values, device=device, are_static=True),
        FakeTensorMode(allow_non_fake_inputs=True),
    )
    run(values[:])
    assert device.n_captures == 1
    mixed = [mode.from_tensor(v) if k in fakes else v for k, v in enumerate(values)]
    (result,) = run(mixed)
    assert isinstance(result, FakeTensor)
    assert (device.n_warm_ups, device.n_captures, device.n_replays) == (WARM_UPS, 1, 1)


def test_a_call_that_fails_leaves_the_group_to_the_next(device: ReplayingDevice) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=device)
    run([torch.zeros(2)])
    with pytest.raises(RuntimeError, match="size of tensor"):
        run([torch.zeros(3)])
    run([torch.zeros(2)])
    assert device.n_replays == 2


@pytest.mark.parametrize(
    ("options", "aliased", "saved"),
    [
        (CaptureOptions(), [], []),
        (CaptureOptions(n_user_outputs=1), [], [1, 2]),
        (CaptureOptions(copy_outputs=False), [0, 1, 2], []),
        (CaptureOptions(copy_outputs=False, n_user_outputs=1), [0], [1, 2]),
        (CaptureOptions(copy_outputs=False, is_backward=True), [], []),
    ],
)
def test_outputs_stay_in_the_graphs_memory_if_saved_or_not_to_be_copied(
    options: CaptureOptions, aliased: list[int], saved: list[int], device: ReplayingDevice
) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.exp(), x.sin(), x.cos()

    launcher = frozen(program, torch.zeros(2), device=device)._launcher
    policy = options.output_policy(launcher, saves_in_place=True)
    assert (list(policy.aliased), list(policy.saved)) == (aliased, saved)
    policy = options.output_policy(launcher, saves_in_place=False)
    assert (list(policy.aliased), list(policy.saved)) == (aliased, [])


@pytest.mark.parametrize("is_backward", [True, False])
def test_a_backward_alone_reads_saved_tensors_in_place_except_those_that_it_writes(
    is_backward: bool, device: ReplayingDevice
) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) * y

    zeros, ones = torch.zeros(2), torch.ones(2)
    options = CaptureOptions(is_backward=is_backward)
    run, pool = frozen(program, zeros, ones, device=device, options=options), device.pool()
    saved = {each.data_ptr(): weakref.ref(pool) for each in (zeros, ones)}
    run._pool_group.saved_pools.update(saved)
    for n in (1.0, 2.0):
        assert_same(list(run([zeros, ones])), [torch.full((2,), n)])
    (key,) = run._cache._graphs
    assert key.fixed == (((1, ones.data_ptr()),) if is_backward else ())
    assert device.n_captures == 1


def test_captures_are_counted_among_pytorchs_counters(device: ReplayingDevice) -> None:
    run, before = frozen(torch.exp, torch.zeros(2), device=device), counters["nimble"]["captures"]
    for _ in range(2):
        run([torch.zeros(2)])
    assert counters["nimble"]["captures"] == before + 1


def test_a_program_frozen_in_inference_mode_runs_outside_of_it(device: ReplayingDevice) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=device)
    with torch.inference_mode():
        inside = torch.ones(2)
        run([inside])
    with torch.no_grad():
        for x in (torch.ones(2), inside):
            assert torch.equal(run([x])[0], torch.ones(2).exp())


def test_threads_that_replay_one_program_do_not_mix_their_inputs(device: ReplayingDevice) -> None:
    def program(x: Tensor) -> Tensor:
        return x.exp() + x.sin()

    run = frozen(program, torch.zeros(100), device=device)
    inputs = [torch.full((100,), i / 8) for i in range(8)]
    assert_threads_do_not_mix(lambda x: run([x])[0], program, inputs, n_calls=50)


def test_the_summary_tells_whether_it_is_frozen(device: ReplayingDevice) -> None:
    model = Branchy()
    with torch.no_grad():
        torch.compile(model, backend="nimble")(torch.randn(2, 4))
    (program,) = nimble_fx.programs()
    assert "frozen   yes, 1 graph\n" in program.summary()
    (line,) = [line for line in program.summary().splitlines() if "  memory " in line]
    total, *by_stream = [float(kib) for kib in re.findall(r"(\S+) KiB", line)]
    assert len(by_stream) == 2
    assert total == pytest.approx(sum(by_stream), rel=0.01)
    del model
    assert "no: the parameters that it was captured with were freed" in program.summary()


def test_freeze_false_launches_each_time(device: ReplayingDevice) -> None:
    compiled = torch.compile(Branchy(), backend="nimble", options={"freeze": False})
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    assert device.n_captures == 0
    assert "freeze=False" in nimble_fx.programs()[0].summary()


def test_a_program_with_symbolic_sizes_has_a_graph_for_each(device: ReplayingDevice) -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble", dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 5, 2, 3, 5):
            x = torch.randn(rows, 4)
            assert_same(compiled(x), model(x))
    assert (device.n_captures, device.n_replays) == (3, 6)
    assert "yes, 3 graphs" in nimble_fx.programs()[0].summary()


def test_a_program_of_more_sizes_than_graphs_warns_once(device: ReplayingDevice) -> None:
    options: dict[str, Any] = {"max_graphs": 1}
    compiled = torch.compile(Branchy(), backend="nimble", dynamic=True, options=options)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in range(2, 6):
            compiled(torch.randn(rows, 4))
    ours = [each for each in caught if issubclass(each.category, NimbleWarning)]
    assert ["max_graphs=1" in str(each.message) for each in ours] == [True]


def test_a_program_that_an_operator_of_its_own_calls_runs_it_unfrozen(
    device: ReplayingDevice,
) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.nimble_tests.again(x * 2)

    compiled = torch.compile(program, backend="nimble")

    def again(x: Tensor) -> Tensor:
        x = x.clone()  # kernels run late, and what the inner program is given may be this memory
        return x + 1 if x.sum() > 100 else compiled(x).clone()

    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("again(Tensor x) -> Tensor")
        library.impl("again", again, "CPU")
        library.impl("again", torch.empty_like, "Meta")
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 65.0))


def test_a_backward_is_captured_though_the_forward_has_left_its_group(
    device: ReplayingDevice,
) -> None:
    x, options = torch.zeros(2), CaptureOptions(is_backward=True)
    run = frozen(torch.exp, x, device=device, options=options)
    run._pool_group.saved_pools[x.data_ptr()] = weakref.ref(device.pool())
    for _ in range(2):
        assert_same(list(run([x])), [x.exp()])
    assert device.n_captures == 1
