"""The CPU device does nothing, with the interface of a device."""

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


def test_operators_are_not_timed_by_themselves() -> None:
    with pytest.raises(UnsupportedError, match="where their program calls them"):
        Cpu().seconds([lambda: None])
