"""Autotuning at the first capture leaves nothing behind but the winner."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nimble_fx.fallback import Reporter
from nimble_fx.runtime.capture.autotuning import Autotuner, AutotuneResult
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.launch import Launcher
from tests.support.eager import (
    assert_same,
)
from tests.support.replaying import ReplayingDevice, frozen


def test_the_winner_of_autotuning_runs_from_then_on_and_nothing_is_timed_again(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (frozen(torch.exp, torch.zeros(2), device=device)._launcher for _ in range(2))
    results, used, enqueue = list[AutotuneResult](), list[Launcher](), Launcher.enqueue

    def watched(launcher: Launcher, *args: Any) -> Any:
        used.append(launcher)
        return enqueue(launcher, *args)

    monkeypatch.setattr(Launcher, "enqueue", watched)
    monkeypatch.setattr(Autotuner, "run", lambda *_: AutotuneResult(1, [2.0, 1.0]))
    autotuner = Autotuner([first, second], results.append)
    group, status = PoolGroup(device), CaptureStatus()
    run = FrozenProgram(first, group, status, Reporter(), CaptureOptions(), autotuner)
    for _ in range(2):
        run([torch.zeros(2)])
        (key,) = run._cache._graphs
        run._cache.remove(key)
    assert set(used) == {second}
    assert len(results) == 1


def test_what_is_timed_leaves_no_memory_to_the_capture_that_runs_from_then_on(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = frozen(torch.exp, torch.zeros(2), device=device)
    alone([torch.zeros(2)])
    large = frozen(lambda x: x.exp().expand(1000, 2).sin(), torch.zeros(2), device=device)
    launchers = [alone._launcher, large._launcher]
    monkeypatch.setattr(Autotuner, "_timed", lambda _, graphs, time_us: {i: [1.0] for i in graphs})
    autotuner, status = Autotuner(launchers, lambda _: None), CaptureStatus()
    run = FrozenProgram(
        launchers[0], PoolGroup(device), status, Reporter(), CaptureOptions(), autotuner
    )
    pool = run._pool_group.shared_pool()  # of the forward, say
    run([torch.zeros(2)])
    assert device.n_captures == 1 + 2 + 1
    assert status.nbytes == alone._status.nbytes == (pool.nbytes(1),)


def test_a_winner_whose_capture_fails_runs_unfrozen_and_is_known(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: FrozenProgram, *args: Any) -> Any:
        raise RuntimeError("out of memory")

    launchers = [frozen(torch.exp, torch.zeros(2), device=device)._launcher for _ in range(2)]
    monkeypatch.setattr(Autotuner, "run", lambda *_: AutotuneResult(1, [2.0, 1.0]))
    monkeypatch.setattr(FrozenProgram, "_capture", fails)
    winners = list[int]()
    autotuner = Autotuner(launchers, lambda result: winners.append(result.winner))
    status, options, x = CaptureStatus(), CaptureOptions(), torch.randn(2)
    reporter = Reporter("silent")
    run = FrozenProgram(launchers[0], PoolGroup(device), status, reporter, options, autotuner)
    assert_same(list(run([x])), [x.exp()])
    assert winners == [1]
    assert run._launcher is launchers[1]
    assert "out of memory" in str(status.reason)


def test_timing_leaves_parameters_as_they_were(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_us(replay: Callable[[], None], n: int) -> float:
        replay()
        return 1.0

    monkeypatch.setattr(device, "time_us", time_us)
    weight = torch.zeros(2)
    launchers = [
        frozen(lambda w: w.add_(1) * 2, weight, device=device, are_static=True)._launcher
        for _ in range(2)
    ]
    autotuner, group = Autotuner(launchers, lambda _: None), PoolGroup(device)
    run = FrozenProgram(
        launchers[0], group, CaptureStatus(), Reporter(), CaptureOptions(), autotuner
    )
    assert_same([*run([weight]), weight], [torch.full((2,), 2.0), torch.ones(2)])
    assert device.n_replays > len(launchers) + 1
