"""Parses Markdown pages for tests: fenced blocks with their marks, links, headings, names."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: the first word behind the fence.
        marks: the other words: "output", "gpu", "file=models.py", "needs=transformers".
        text: what is in it.
        line: where in the page its first line is, from 1.
    """

    language: str
    marks: tuple[str, ...]
    text: str
    line: int

    def mark(self, name: str) -> str | None:
        """The value of a mark such as "file=models.py"; None if it is not there."""
        values = [mark.partition("=")[2] for mark in self.marks if mark.startswith(f"{name}=")]
        return values[0] if values else None


@dataclass(frozen=True)
class Page:
    """A Markdown file of the project."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the project."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[Block]:
        """Its fenced blocks in order."""
        return [
            Block(m[1], tuple(m[2].split()), m[3], self.text.count("\n", 0, m.start(3)) + 1)
            for m in _FENCE.finditer(self.text)
        ]

    @property
    def prose(self) -> str:
        """Its text without the fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        """Where its links lead, images among them."""
        return _LINK.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """What its headings are called in links."""
        return {_slug(title) for title in re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)}

    @property
    def code_spans(self) -> list[str]:
        """What stands between backticks in the prose."""
        return re.findall(r"`([^`\n]+)`", self.prose)


def _slug(title: str) -> str:
    """A heading as GitHub has it in links."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


PAGES = [
    Page(path)
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "passes" / "README.md",
    )
]
