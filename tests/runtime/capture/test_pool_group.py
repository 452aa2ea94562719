"""The runs of a group take turns, each after the one before, and share a pool of memory."""

import copy
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.cpu import Cpu
from nimble_fx.runtime.capture.pool_group import PoolGroup
from tests.support.eager import assert_same
from tests.support.models import Branchy
from tests.support.replaying import ReplayingDevice, frozen


def test_the_shared_pool_goes_with_the_last_who_holds_it() -> None:
    pool_group = PoolGroup(ReplayingDevice())
    pool = pool_group.shared_pool()
    assert pool_group.shared_pool() is pool
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    assert pool_group.private_pool() is not pool_group.private_pool()


def test_a_turn_is_refused_to_who_has_one_and_to_who_launches_while_another_has_one() -> None:
    device = ReplayingDevice()
    pool_group = PoolGroup(device)
    assert pool_group.acquire()
    assert not pool_group.acquire()

    def launch() -> bool:
        with device.exclusive():
            return pool_group.acquire()

    with ThreadPoolExecutor(1) as other:
        assert not other.submit(launch).result()
    pool_group.release()
    assert pool_group.acquire()


def test_after_a_turn_that_was_refused_another_thread_may_have_the_next() -> None:
    pool_group, turns = PoolGroup(ReplayingDevice()), list[bool]()
    assert pool_group.acquire()
    assert not pool_group.acquire()
    pool_group.release()
    other = Thread(target=lambda: turns.append(pool_group.acquire()), daemon=True)
    other.start()
    other.join(30)
    assert turns == [True]


def test_each_runs_after_the_last_whatever_stream_it_is_called_on() -> None:
    device = ReplayingDevice()
    pool_group, x = PoolGroup(device), torch.zeros(64)
    one, other = device.streams(3)[1:]
    for i in range(1, 20):
        with one, pool_group.turn():
            x.fill_(i)
        with other, pool_group.turn():
            seen = x.clone()
        device.synchronize()
        assert torch.equal(seen, torch.full((64,), float(i)))


def test_a_program_without_captures_runs_alone_in_its_group() -> None:
    pool_group, is_free = PoolGroup(ReplayingDevice()), list[bool]()

    def call(args: list[Any]) -> list[Any]:
        is_free.append(pool_group.acquire())
        return []

    run = pool_group.ordered(call)
    run([])
    assert pool_group.acquire()
    run([])  # a call of a program in the group, which does not end the turn
    assert not pool_group.acquire()
    assert is_free == [False, False]


def test_a_program_without_captures_leaves_its_group_though_it_fails() -> None:
    pool_group = PoolGroup(ReplayingDevice())

    def fail(args: list[Any]) -> list[Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool_group.ordered(fail)([])
    assert pool_group.acquire()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[PoolGroup]:
    """The groups of runs whose end is recorded, in order."""
    ended, record_end = list[PoolGroup](), PoolGroup.record_end

    def watched(pool_group: PoolGroup, *args: Any) -> None:
        ended.append(pool_group)
        record_end(pool_group, *args)

    monkeypatch.setattr(PoolGroup, "record_end", watched)
    return ended


def test_a_run_whose_capture_failed_is_waited_for_by_the_next(ended: list[PoolGroup]) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=ReplayingDevice(fail=True))
    with pytest.warns(nimble_fx.NimbleWarning, match="capture failed"):
        run([torch.ones(2)])
    run([torch.ones(2)])
    assert len(ended) == 2


def test_a_run_of_buffers_that_share_memory_by_now_is_waited_for_by_the_next(
    ended: list[PoolGroup], device: ReplayingDevice
) -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(2))
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.a: Tensor
            self.b: Tensor
            self.a += x
            return self.b * 2

    model = Adds()
    compiled = torch.compile(model, backend="nimble", options={"on_fallback": "silent"})
    with torch.no_grad():
        compiled(torch.ones(2))
        model.b.data = model.a.data
        ended.clear()
        compiled(torch.ones(2))
    assert len(ended) == 1
    assert device.n_captures == 1


def test_a_replay_waits_for_the_one_before_though_an_uncaptured_run_is_in_between() -> None:
    device = ReplayingDevice()
    replay = frozen(lambda x: x.exp() + x.sin(), torch.zeros(64), device=device)
    uncaptured = replay._pool_group.ordered(lambda args: [args[0].neg()])
    replay([torch.zeros(64)])
    one, other = device.streams(3)[1:]
    for i in range(20):
        x, y = torch.full((64,), i / 8), torch.full((64,), -i / 8)
        with one:
            results = [*replay([x])]
        with other:
            results += [*uncaptured([y]), *replay([y])]
        device.synchronize()
        assert_same(results, [x.exp() + x.sin(), -y, y.exp() + y.sin()])


def test_no_run_waits_for_one_in_a_capture_of_the_users() -> None:
    device = ReplayingDevice()
    pool_group = PoolGroup(device)
    run = pool_group.ordered(lambda args: [args[0].exp()])
    with torch.no_grad():
        device.capture(1, lambda streams: run([torch.zeros(2)]), device.pool())
    pool_group.wait_for_last()


def test_a_capture_comes_after_the_last_replay(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    wait, warm_up = PoolGroup.wait_for_last, ReplayingDevice.warm_up

    def watched_wait(pool_group: PoolGroup) -> Any:
        order.append("waits")
        return wait(pool_group)

    def watched_warm_up(one: ReplayingDevice, *args: Any, **kwargs: Any) -> None:
        order.append("warms up")
        warm_up(one, *args, **kwargs)

    monkeypatch.setattr(PoolGroup, "wait_for_last", watched_wait)
    monkeypatch.setattr(ReplayingDevice, "warm_up", watched_warm_up)
    frozen(torch.exp, torch.zeros(2), device=device)([torch.zeros(2)])
    assert order[0] == "waits"
    assert "warms up" in order


def test_a_backward_that_is_not_frozen_takes_its_turn_too(
    device: ReplayingDevice, ended: list[PoolGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nimble_fx.runtime.capture.checks.check_capturable", refuse_backwards)
    model = Branchy()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble", options={"on_fallback": "silent"})
    for run in (compiled, eager):
        run(torch.ones(2, 4)).sum().backward()
    assert_same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])
    assert len(ended) == 2
    assert ended[0] is ended[1]
    (fallback,) = nimble_fx.fallbacks()
    assert "backward" in fallback.program


def refuse_backwards(graph: nimble_fx.TaskGraph) -> None:
    if "backward" in graph.name:
        raise nimble_fx.UnsupportedError("it waits for the device")


def test_a_device_without_captures_orders_no_runs() -> None:
    def run(args: list[Any]) -> list[Any]:
        return args

    assert PoolGroup(Cpu()).ordered(run) is run
