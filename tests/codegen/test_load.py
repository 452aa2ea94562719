"""Tracebacks and pdb find the text of a loaded module."""

import gc
import linecache
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.devices.cpu import Cpu
from tests.support.schedules import schedule_of

FAILS = "def call():\n    1 / 0\nN_STREAMS = EVENTS = INPUTS = PARAMETERS = ()\n"


def test_a_traceback_shows_the_emitted_line() -> None:
    source = emit(schedule_of(lambda x, y: x @ y, torch.ones(2, 3), torch.ones(3, 2)))
    loaded = load(source, "nimble_fx/mm.py")
    wrong = [torch.ones(2, 3), torch.ones(5, 2)]
    with pytest.raises(RuntimeError) as caught:
        loaded.call(wrong, None, Cpu().streams(1), None)
    assert "mm = aten.mm.default(x_1, y_1)" in "".join(traceback.format_exception(caught.value))


def test_linecache_keeps_the_text_through_a_check() -> None:
    loaded = load(FAILS, "nimble_fx/kept.py")
    linecache.checkcache()
    assert loaded.call.__code__.co_filename == "nimble_fx/kept.py"
    assert linecache.getline("nimble_fx/kept.py", 1) == "def call():\n"


def test_line_numbers_are_pythons_whatever_the_text_holds() -> None:
    loaded = load("# \x0c \x85 \u2028\n" + FAILS, "nimble_fx/lines.py")
    assert loaded.call.__code__.co_filename == "nimble_fx/lines.py"
    assert linecache.getline("nimble_fx/lines.py", 2) == "def call():\n"


def test_a_text_goes_with_the_last_of_the_modules_that_have_it() -> None:
    first, second = load(FAILS, "nimble_fx/twice.py"), load(FAILS, "nimble_fx/twice.py")
    del first
    assert linecache.getlines("nimble_fx/twice.py")
    del second
    assert "nimble_fx/twice.py" not in linecache.cache


def test_a_text_stays_for_as_long_as_a_traceback_may_show_it() -> None:
    loaded = load(FAILS, "nimble_fx/raised.py")
    with pytest.raises(ZeroDivisionError) as caught:
        loaded.call()
    del loaded
    assert "1 / 0" in "".join(traceback.format_exception(caught.value))
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert "nimble_fx/raised.py" not in linecache.cache


def test_a_text_that_fails_to_load_is_shown_and_then_gone() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        load("N_STREAMS = 1 / 0\n", "nimble_fx/broken.py")
    assert "N_STREAMS = 1 / 0" in "".join(traceback.format_exception(caught.value))
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert "nimble_fx/broken.py" not in linecache.cache


def test_threads_that_load_and_drop_one_text_leave_it_to_who_still_has_it() -> None:
    kept = load(FAILS, "nimble_fx/shared.py")

    def load_and_drop(_: int) -> None:
        for _ in range(100):
            load(FAILS, "nimble_fx/shared.py")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(load_and_drop, range(4)))
    assert linecache.getlines("nimble_fx/shared.py")
    del kept
    assert "nimble_fx/shared.py" not in linecache.cache


def test_a_loaded_module_calls_the_dispatchers_own_functions() -> None:
    source = emit(schedule_of(lambda x, y: x + y, torch.ones(2), torch.ones(2)))
    loaded = load(source, "nimble_fx/add.py")
    called = loaded.call.__globals__["aten"].add.Tensor
    assert called is torch.ops.aten.add.Tensor.op
    (result,) = loaded.call([torch.ones(2), torch.ones(2)], None, Cpu().streams(1), None)
    assert torch.equal(result, torch.full((2,), 2.0))
