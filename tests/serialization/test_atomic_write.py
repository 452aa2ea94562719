"""Files are written whole or not at all."""

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


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path, "a.py", "x = 1\n")
    assert list(tmp_path.iterdir()) == []
