"""Prints tables and progress, with rich if it is installed, otherwise as plain text.

`bench.evidence` runs on machines that only have PyTorch, pytest and hypothesis.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError:
    HAS_RICH = False
else:
    HAS_RICH = True

_PIPED_WIDTH = 130

Rows = Iterable[Iterable[Sequence[str]]]
"""Sections of rows of cells."""

Begin = Callable[[str], None]
"""Called with the name of each step when it begins."""


def console() -> "Console":
    """Rich's console on stdout; a fixed width if stdout is a file or a pipe."""
    screen = Console(highlight=False, soft_wrap=False)
    if not screen.is_terminal:
        screen.width = _PIPED_WIDTH
    return screen


def say(text: str, good: bool | None = None) -> None:
    """Prints a line; good news in green, bad news in red."""
    if not HAS_RICH:
        print(text, flush=True)
        return
    style = {None: "", True: "green", False: "bold red"}[good]
    console().print(text, style=style, markup=False, soft_wrap=True)


def print_table(title: str, header: Sequence[str], sections: Rows) -> None:
    """Prints a table with lines between its sections; the first column has the names of rows.

    The header is left out if it is empty.
    """
    if HAS_RICH:
        _print_rich_table(title, header, sections)
    else:
        print("\n".join(plain_table(title, header, sections)), flush=True)


def plain_table(title: str, header: Sequence[str], sections: Rows) -> list[str]:
    """The lines of a table as plain text."""
    kept = [list(section) for section in sections]
    rows = [list(header), *(list(row) for section in kept for row in section)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [title]
    for section in [[header]] * any(header) + kept:
        lines.append(rule)
        for first, *others in section:
            cells = zip(others, widths[1:], strict=True)
            lines.append("  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in cells)]))
    return [*lines, rule]


def _print_rich_table(title: str, header: Sequence[str], sections: Rows) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(header))
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", no_wrap=i == 0)
    for section in sections:
        for row in section:
            table.add_row(*row)
        table.add_section()
    console().print(table)


@contextmanager
def progress(title: str, n_steps: int) -> Iterator[Begin]:
    """Shows how far a command is, on stderr: a bar on a terminal, else a line a step.

    Args:
        title: the name of the task.
        n_steps: the number of its steps.

    Yields:
        A function to call when a step begins.
    """
    if not (HAS_RICH and sys.stderr.isatty()):
        counted = count(1)
        yield lambda step: print(
            f"{title}, {next(counted)} of {n_steps}: {step}", file=sys.stderr, flush=True
        )
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(title, total=n_steps)
        begun: list[str] = []

        def begin(step: str) -> None:
            bar.update(line, completed=len(begun), description=f"{title}: {step}")
            begun.append(step)

        yield begin
