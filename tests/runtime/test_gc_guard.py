"""The collector's state is what it was, however a pause ends."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from nimble_fx.runtime import gc_guard


@pytest.fixture(autouse=True)
def _enabled_afterwards() -> Iterator[None]:
    yield
    gc.enable()


def test_holding_needs_no_module_which_may_be_gone_as_python_exits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold = gc_guard.free_later
    monkeypatch.delattr(gc_guard, "_pauses")
    monkeypatch.delattr(gc_guard, "threading")
    thing = {1, 2}
    held = weakref.ref(thing)
    hold(thing)
    del thing
    assert held() is None  # nothing is paused


@pytest.mark.parametrize("enabled", [True, False])
def test_a_pause_leaves_the_collector_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with gc_guard.paused():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


@pytest.mark.parametrize("enabled", [True, False])
def test_so_does_a_pause_that_an_error_ends(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ZeroDivisionError), gc_guard.paused():
        _ = 1 / 0
    assert gc.isenabled() == enabled


def test_pauses_within_pauses_end_with_the_outer_one() -> None:
    with gc_guard.paused():
        with gc_guard.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
