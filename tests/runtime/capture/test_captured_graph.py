"""A capture has no side effects, copies its inputs, and returns its memory."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nimble_fx.devices.virtual.memory import Pool
from nimble_fx.errors import NimbleWarning, StateError
from nimble_fx.runtime.capture.captured_graph import WARM_UPS
from nimble_fx.runtime.capture.pool_group import PoolGroup
from tests.support.eager import (
    assert_same,
    twins,
)
from tests.support.models import CASES, Branchy
from tests.support.replaying import ReplayingDevice, frozen


def test_a_mutated_input_is_written_back_once_per_call(device: ReplayingDevice) -> None:
    def program(x: Tensor) -> Tensor:
        return x.add_(1).sum()

    run = frozen(program, torch.zeros(3), device=device)
    x = torch.zeros(3)
    for n in range(1, 4):
        (total,) = run([x])
        assert torch.equal(x, torch.full((3,), float(n)))
        assert total == 3 * n


def test_warm_up_leaves_state_and_random_numbers_alone(device: ReplayingDevice) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.calls: Tensor
            self.calls += 1
            return x + torch.rand_like(x) * self.calls

    model = Counts()
    compiled, x = torch.compile(model, backend="nimble"), torch.zeros(3)
    with torch.no_grad():
        torch.manual_seed(5)
        first = compiled(x)
        assert device.n_warm_ups == WARM_UPS
        assert torch.equal(model.calls, torch.ones(3))
        torch.manual_seed(5)
        assert torch.equal(first, torch.rand(3))


def test_each_warm_up_begins_with_the_state_that_the_call_found(device: ReplayingDevice) -> None:
    class Fills(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("place", torch.zeros(1, dtype=torch.int64))
            self.register_buffer("table", torch.zeros(1, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.place: Tensor
            self.table: Tensor
            self.table.index_copy_(0, self.place, x)  # fails where there is no such place
            self.place += 1
            return self.table.exp()

    model, x = Fills(), torch.randn(1, 3)
    with torch.no_grad():
        assert_same(torch.compile(model, backend="nimble")(x), x.exp())
    assert (device.n_captures, model.place.item()) == (1, 1)


def test_each_warm_up_begins_with_the_inputs_of_the_call(device: ReplayingDevice) -> None:
    def program(place: Tensor, table: Tensor, x: Tensor) -> Tensor:
        table.index_copy_(0, place, x)  # fails where there is no such place
        return place.add_(1) * table.exp()

    zeros = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3), torch.zeros(1, 3)
    place, table, x = zeros[0].clone(), zeros[1].clone(), torch.randn(1, 3)
    (result,) = frozen(program, *zeros, device=device)([place, table, x])
    assert_same([result, table], [x.exp(), x])
    assert (device.n_captures, place.item()) == (1, 1)


def test_a_failure_in_warm_up_leaves_state_as_it_was(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up = ReplayingDevice.warm_up

    def fail_late(self: ReplayingDevice, *args: Any, **kwargs: Any) -> None:
        warm_up(self, *args, **kwargs)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ReplayingDevice, "warm_up", fail_late)
    model, eager = twins(CASES["cache"], train=False)
    compiled, inputs = torch.compile(model, backend="nimble"), CASES["cache"].inputs()
    with torch.no_grad():
        with pytest.warns(NimbleWarning, match="capture failed: out of memory"):
            ours = compiled(*inputs)
        assert_same(ours, eager(*inputs))
    assert_same(dict(model.state_dict()), dict(eager.state_dict()))


def test_state_that_cannot_be_restored_is_an_error(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, warm_up = CASES["cache"].model(), ReplayingDevice.warm_up

    def then_resize(self: ReplayingDevice, *args: Any, **kwargs: Any) -> None:
        warm_up(self, *args, **kwargs)
        dict(model.named_buffers())["keys"].resize_(2)

    monkeypatch.setattr(ReplayingDevice, "warm_up", then_resize)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad(), pytest.raises(StateError, match="Load the model's state again"):
        compiled(*CASES["cache"].inputs())


def test_an_expanded_input_is_fed_each_element_once(device: ReplayingDevice) -> None:
    run = frozen(lambda x: x.exp(), torch.zeros(1, 2).expand(3, 2), device=device)
    for _ in range(2):
        x = torch.randn(1, 2).expand(3, 2)
        assert_same(list(run([x])), [x.exp()])
    empty = torch.randn(1, 2).expand(0, 2)
    assert_same(list(frozen(lambda x: x + 1, empty, device=device)([empty])), [empty + 1])


def test_each_timing_begins_with_the_calls_inputs_after_the_last_run_and_restores_state(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mutated = frozen(lambda x: x.add_(1) * 2, torch.zeros(2), device=device), torch.tensor(3)
    run([torch.zeros(2)])
    (graph,) = run._cache._graphs.values()
    order, wait, record = list[str](), PoolGroup.wait_for_last, PoolGroup.record_end

    def waited(pool_group: PoolGroup) -> Any:
        order.append("waits")
        return wait(pool_group)

    def recorded(pool_group: PoolGroup, *args: Any) -> None:
        order.append("ends")
        record(pool_group, *args)

    def timed(replay: Callable[[], None], n: int) -> float:
        order.append("replays")
        assert torch.equal(graph._buffers[0], torch.zeros(2))
        mutated.add_(1)
        replay()
        return 1.0

    monkeypatch.setattr(PoolGroup, "wait_for_last", waited)
    monkeypatch.setattr(PoolGroup, "record_end", recorded)
    monkeypatch.setattr(device, "time_us", timed, raising=False)
    for _ in range(2):
        assert graph.time_us([torch.zeros(2)], [mutated], 1) == 1.0
    assert order == ["waits", "replays", "ends"] * 2
    assert mutated == 3


def test_replays_on_streams_that_do_not_wait_for_each_other_do_not_mix(
    device: ReplayingDevice,
) -> None:
    run = frozen(lambda x: x.exp() + x.sin(), torch.zeros(64), device=device)
    run([torch.zeros(64)])
    streams = device.streams(3)[1:]
    for i in range(20):
        inputs, results = [torch.full((64,), float(k)) for k in (i / 8, -i / 8)], list[Any]()
        for stream, x in zip(streams, inputs, strict=True):
            with stream:
                results.append(run([x])[0])
        device.synchronize()
        assert_same(results, [x.exp() + x.sin() for x in inputs])


def watched_pools(device: ReplayingDevice) -> "weakref.WeakSet[Pool]":
    """The pools that the device makes from now on, as long as they live."""
    pools: weakref.WeakSet[Pool] = weakref.WeakSet()
    make = device.pool

    def watched() -> Pool:
        pools.add(pool := make())
        return pool

    device.pool = watched  # type: ignore[method-assign]
    return pools


def test_a_program_that_is_dropped_gives_its_memory_back_at_once(device: ReplayingDevice) -> None:
    pools = watched_pools(device)
    run = frozen(lambda x: x.exp() + x.sin(), torch.zeros(4), device=device)
    (kept,) = run([torch.ones(4)])
    assert len(pools) == 1
    gc.disable()
    try:
        del run
        assert len(pools) == 0
    finally:
        gc.enable()
    assert torch.equal(kept, torch.ones(4).exp() + torch.ones(4).sin())


def test_a_model_that_shares_a_program_gives_its_memory_back_when_it_is_dropped(
    device: ReplayingDevice,
) -> None:
    pools = watched_pools(device)
    models = [nn.Sequential(Branchy(), Branchy()) for _ in range(2)]  # a weight is saved
    compiled = torch.compile(lambda model, x: model(x), backend="nimble")
    for i in range(2):
        compiled(models[i], torch.randn(2, 4)).sum().backward()
    assert len(pools) == 2
    del models[0]
    gc.collect()
    assert len(pools) == 1


def test_captures_whose_outputs_are_copied_share_a_pool(device: ReplayingDevice) -> None:
    pools, models = watched_pools(device), [Branchy() for _ in range(3)]
    compiled = torch.compile(lambda model, x: model(x), backend="nimble")
    with torch.no_grad():
        for model in models:
            compiled(model, torch.randn(2, 4))
    assert (device.n_captures, len(pools)) == (3, 1)


def test_a_parameter_that_a_capture_outputs_is_not_kept_by_it(device: ReplayingDevice) -> None:
    pools, model = watched_pools(device), nn.Linear(4, 4)
    compiled = torch.compile(lambda model, x: (model.weight.t(), x + 1), backend="nimble")
    with torch.no_grad():
        compiled(model, torch.randn(2, 4))
    assert (device.n_captures, len(pools)) == (1, 1)
    del model
    gc.collect()
    assert len(pools) == 0


def test_a_compiled_model_that_is_dropped_gives_all_memory_back(device: ReplayingDevice) -> None:
    pools = watched_pools(device)
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble")
    compiled(x).sum().backward()
    assert len(pools) == 1  # the backward allocates from the forward's
    del compiled, model
    gc.collect()
    assert len(pools) == 0
    assert not device._live
