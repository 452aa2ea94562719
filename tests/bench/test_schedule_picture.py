"""The README's picture is what its command draws now."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import nimble_fx
from bench.schedule_picture import COLOURS, PICTURE, draw, main, shown_programs

pytestmark = pytest.mark.slow

Programs = Mapping[str, nimble_fx.Program]


@pytest.fixture(scope="module")
def drawn() -> Programs:
    return shown_programs()


def texts(picture: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())


def test_the_picture_in_the_repository_says_what_is_drawn(drawn: Programs, tmp_path: Path) -> None:
    draw(drawn, tmp_path / "schedule.svg")
    assert texts(tmp_path / "schedule.svg") == texts(PICTURE)
    assert set(texts(PICTURE)) >= {*COLOURS, "s0", "s3"}


def test_the_command_draws_the_same_file_each_time(
    drawn: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.schedule_picture.shown_programs", lambda: drawn)
    for name in ("first.svg", "second.svg"):
        assert main(["--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
