"""The picture of the README is what its command draws now."""

import re
from pathlib import Path

from bench.schedule_picture import COLOURS, PICTURE, main


def texts(picture: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())


def test_the_picture_in_the_repository_says_what_the_command_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "schedule.svg"
    assert main(["--out", str(drawn)]) == 0
    assert texts(drawn) == texts(PICTURE)
    assert set(texts(drawn)) >= {*COLOURS, "s0", "s3"}


def test_the_same_programs_make_the_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    main(["--out", str(first)])
    main(["--out", str(second)])
    assert first.read_bytes() == second.read_bytes()
