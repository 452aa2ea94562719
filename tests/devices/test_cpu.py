"""The CPU device does nothing, in the right shape."""

import weakref
from functools import partial

import pytest

from nimble_fx.devices import device_named
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import UnsupportedError


def test_streams_and_events_can_be_used_and_change_nothing() -> None:
    device = Cpu()
    first, second = device.streams(2)
    events = device.events(("a", "b"))
    with first:
        events.a.record(first)
        second.wait_event(events.a)
    assert vars(events).keys() == {"a", "b"}


def test_an_exception_inside_a_stream_passes_through() -> None:
    (stream,) = Cpu().streams(1)
    with pytest.raises(ZeroDivisionError), stream:
        raise ZeroDivisionError


def test_it_cannot_capture() -> None:
    with pytest.raises(UnsupportedError, match="no CUDA graphs"):
        Cpu().capture(1, lambda streams: (), None)


def test_devices_are_found_by_the_names_that_they_have() -> None:
    for name, hardware in {"cpu": "cpu", "virtual (seed -7)": "virtual"}.items():
        device = device_named(name)
        assert device is not None
        assert (device.name, device.hardware) == (name, hardware)


@pytest.mark.parametrize("name", ["", "tpu", "meta", "cuda:77", "virtual (seed x)", "cpu\n", "é"])
def test_there_is_no_device_of_another_name(name: str) -> None:
    assert device_named(name) is None


def test_calls_are_timed_in_turn_and_as_often_as_each_other() -> None:
    n_calls = [0, 0, 0]

    def call(i: int) -> None:
        assert n_calls[i] == min(n_calls) or n_calls[i] == n_calls[i - 1] - 1
        n_calls[i] += 1

    calls = [partial(call, i) for i in range(3)]
    assert 0 < Cpu().seconds(calls) < 1
    assert max(n_calls) > 1


def test_each_result_lives_until_the_next_one_is_there() -> None:
    class Result:
        pass

    last: list[weakref.ref[Result]] = []
    n_alive: list[bool] = []

    def call() -> Result:
        n_alive.extend(each() is not None for each in last)
        result = Result()
        last[:] = [weakref.ref(result)]
        return result

    Cpu().seconds([call])
    assert sum(n_alive) > len(n_alive) / 2


def test_what_a_call_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Cpu().seconds([lambda: 1 // 0])
