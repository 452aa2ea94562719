"""The CPU device does nothing, in the right shape."""

import pytest

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
