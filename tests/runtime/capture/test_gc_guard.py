"""The garbage collector's state is restored, however a pause ends."""

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from nimble_fx.runtime.capture import gc_guard


@pytest.fixture(autouse=True)
def _enabled_afterwards() -> Iterator[None]:
    yield
    gc.enable()


def test_freeing_later_needs_no_module_globals_which_python_clears_as_it_exits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_later = gc_guard.free_later
    monkeypatch.delattr(gc_guard, "_pauses")
    monkeypatch.delattr(gc_guard, "threading")
    item = {1, 2}
    reference = weakref.ref(item)
    free_later(item)
    del item
    assert reference() is None  # nothing is paused


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


def collects_in_a_fork() -> bool:
    """Whether the collector is on in a process that is forked now."""
    child = os.fork()
    if child == 0:
        os._exit(int(gc.isenabled()))
    _, status = os.waitpid(child, 0)
    return bool(os.waitstatus_to_exitcode(status))


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_pause_of_another_thread_does_not_outlive_a_fork() -> None:
    is_paused, may_end = threading.Event(), threading.Event()

    def pause() -> None:
        with gc_guard.paused():
            is_paused.set()
            may_end.wait()

    thread = threading.Thread(target=pause)
    thread.start()
    is_paused.wait()
    try:
        assert not gc.isenabled()
        assert collects_in_a_fork()
        with gc_guard.paused():
            assert not collects_in_a_fork()  # within a pause of its own
    finally:
        may_end.set()
        thread.join()
    assert gc.isenabled()
