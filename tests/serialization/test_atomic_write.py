"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from nimble_fx.serialization.atomic_write import write_atomically


def test_writing_makes_the_directory_and_leaves_one_file(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "new" / "deep", "a.py", "x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert write_atomically(tmp_path / "new" / "deep", "a.py", "x = 2\n") == path
    assert [p.name for p in path.parent.iterdir()] == ["a.py"]
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    name = "a" * os.pathconf(tmp_path, "PC_NAME_MAX")
    assert write_atomically(tmp_path, name, "x = 1\n").read_text() == "x = 1\n"


def test_writers_that_have_one_process_number_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first processes of two containers do that share the directory."""
    replace = os.replace

    def write_meanwhile(source: Path, target: Path) -> None:
        monkeypatch.setattr("os.replace", replace)
        write_atomically(tmp_path, "a.py", "x = 2\n")
        assert target.read_text() == "x = 2\n"
        replace(source, target)

    monkeypatch.setattr("os.replace", write_meanwhile)
    assert write_atomically(tmp_path, "a.py", "x = 1\n").read_text() == "x = 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path, "a.py", "x = 1\n")
    assert list(tmp_path.iterdir()) == []
