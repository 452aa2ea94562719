"""A value of a JSON text that knows where it stands, so that what is wrong can be said."""

import math
import reprlib
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from nimble_fx.errors import FileError

_LARGEST = 2**64
"""No operator takes an integer of more bits; Python prints and parses long ones slowly."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value, and where it stands. Each method gives it as one type, or raises FileError.

    Attributes:
        value: as `json` makes it.
        key: its name or position in what it is part of.
        parent: what it is part of; None at the top.
    """

    value: Any
    key: str | int = ""
    parent: "Field | None" = None

    @property
    def where(self) -> str:
        """Its path: "tasks[3].type"."""
        if self.parent is None:
            return str(self.key)
        step = f"[{self.key}]" if isinstance(self.key, int) else f".{self.key}"
        return (self.parent.where + step).removeprefix(".")

    def error(self, expected: str) -> FileError:
        """The error that says what is there, and what should be."""
        return FileError(f"{self.where or 'it'} is {reprlib.repr(self.value)}, not {expected}")

    def items(self) -> Iterator["Field"]:
        """The items of a list."""
        if type(self.value) is not list:
            raise self.error("a list")
        return (Field(item, i, self) for i, item in enumerate(self.value))

    def members(self) -> dict[str, "Field"]:
        """The members of an object, whatever their names."""
        if type(self.value) is not dict:
            raise self.error("an object")
        return {key: Field(item, key, self) for key, item in self.value.items()}

    def record(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
        """The members of an object that has these and no others."""
        members = self.members()
        missing = sorted(set(required) - members.keys())
        if missing:
            raise FileError(f"{self.where or 'it'} has no {', '.join(missing)}")
        for name in members.keys() - set(required) - set(optional):
            raise members[name].error("there in this version of the format")
        return members

    def integer(self) -> int:
        """An integer from 0 up."""
        if type(self.value) is not int or not 0 <= self.value < _LARGEST:
            raise self.error("an integer from 0 up")
        return self.value

    def boolean(self) -> bool:
        """True or False."""
        if type(self.value) is not bool:
            raise self.error("true or false")
        return self.value

    def text(self) -> str:
        """Text that can be written to a file: of Unicode characters, not halves of them."""
        if type(self.value) is not str or any("\ud800" <= c <= "\udfff" for c in self.value):
            raise self.error("text")
        return self.value

    def code(self) -> str:
        """Text without control characters, other than white space: a line of somebody's code."""
        text = self.text()
        if any(unicodedata.category(c) == "Cc" and not c.isspace() for c in text):
            raise self.error("text without control characters")
        return text

    def line(self) -> str:
        """Text that may stand in a docstring or a comment, and cannot end it.

        A hostile file would have what follows run.
        """
        text = self.text()
        if not text.isprintable() or "\\" in text or '"""' in text:
            raise self.error("one line of printable text without backslashes and triple quotes")
        return text

    def name(self) -> str:
        """A name that a value or a keyword may have in a module, as Python reads it."""
        text = self.text()
        plain = unicodedata.normalize("NFKC", text) == text
        if not (text.isidentifier() and plain) or (text.startswith("__") and text.endswith("__")):
            raise self.error("a name that a value may have")
        return text

    def number(self) -> int | float:
        """An integer of at most 64 bits, or a finite floating-point number."""
        if type(self.value) is float and math.isfinite(self.value):  # 1e999 is not
            return self.value
        if type(self.value) is not int or not -_LARGEST < self.value < _LARGEST:
            raise self.error("a number of at most 64 bits")
        return self.value
