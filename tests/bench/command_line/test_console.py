"""Tables are printed without rich, with the same content."""

import pytest

from bench.command_line import console

TITLE, HEADER, ROWS = "times", ["", "a call"], [[["eager", "12 ms"]], [["nimble", "9 ms"]]]


def test_a_plain_table_has_aligned_columns() -> None:
    lines = console.plain_table(TITLE, HEADER, ROWS)
    rule = "-" * len("nimble  a call")
    assert lines == [
        "times",
        rule,
        "        a call",
        rule,
        "eager    12 ms",
        rule,
        "nimble    9 ms",
        rule,
    ]


@pytest.mark.parametrize("has_rich", [False, True])
def test_each_cell_is_printed(
    has_rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "HAS_RICH", has_rich)
    console.print_table(TITLE, HEADER, ROWS)
    console.say("[done]", good=True)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("times", "eager", "12 ms", "nimble", "9 ms", "[done]"))
