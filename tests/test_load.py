"""Loading: the text is where tracebacks and pdb look, and files are written whole."""

import linecache
import traceback
from pathlib import Path

import pytest
import torch

from nimble_fx.devices.cpu import Cpu
from nimble_fx.emit import emit
from nimble_fx.load import file_name, load, write
from tests.schedules import schedule_of


def test_a_traceback_shows_the_emitted_line() -> None:
    source = emit(schedule_of(lambda x, y: x @ y, torch.ones(2, 3), torch.ones(3, 2)))
    loaded = load(source, "nimble_fx/mm.py")
    wrong = [torch.ones(2, 3), torch.ones(5, 2)]
    with pytest.raises(RuntimeError) as caught:
        loaded.call(wrong, None, Cpu().streams(1), None)
    assert "mm = aten.mm.default(x_1, y_1)" in "".join(traceback.format_exception(caught.value))


def test_linecache_keeps_the_text_through_a_check() -> None:
    load("call = N_STREAMS = EVENTS = INPUTS = PARAMETERS = ()\n", "nimble_fx/kept.py")
    linecache.checkcache()
    assert linecache.getline("nimble_fx/kept.py", 1).startswith("call = ")


def test_line_numbers_are_pythons_whatever_the_text_holds() -> None:
    source = "call = N_STREAMS = EVENTS = INPUTS = PARAMETERS = ()  # \x0c \x85 \u2028\nlast = 1\n"
    load(source, "nimble_fx/lines.py")
    assert linecache.getline("nimble_fx/lines.py", 2) == "last = 1\n"


def test_the_file_name_follows_the_text_and_is_fit_for_a_file() -> None:
    assert file_name("Net.forward (backward)", "a") == file_name("Net.forward (backward)", "a")
    assert file_name("Net", "a") != file_name("Net", "b")
    assert "/" not in file_name("../x", "a")
    assert " " not in file_name("Net.forward (backward)", "a")


def test_writing_makes_the_directory_and_leaves_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "deep", "a.py", "x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert write(tmp_path / "new" / "deep", "a.py", "x = 2\n") == path
    assert [p.name for p in path.parent.iterdir()] == ["a.py"]
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, "a.py", "x = 1\n")
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_module_calls_the_dispatchers_own_functions() -> None:
    source = emit(schedule_of(lambda x, y: x + y, torch.ones(2), torch.ones(2)))
    loaded = load(source, "nimble_fx/add.py")
    called = loaded.call.__globals__["aten"].add.Tensor
    assert called is torch.ops.aten.add.Tensor.op
    (result,) = loaded.call([torch.ones(2), torch.ones(2)], None, Cpu().streams(1), None)
    assert torch.equal(result, torch.full((2,), 2.0))
