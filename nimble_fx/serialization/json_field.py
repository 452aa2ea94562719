"""A value of a JSON text with its path, for error messages."""

import math
import reprlib
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from nimble_fx.errors import FileError

_INTEGER_LIMIT = 2**64
"""No operator takes an integer of more bits; Python prints and parses long ones slowly."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value and its path. Each method returns it as one type, or raises FileError.

    Attributes:
        value: the value from `json`.
        key: its name or position in its parent.
        parent: the object or list that has it; None at the top.
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
        """An error with the path, the value, and what was expected."""
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
        """The members of an object, which must have all required ones and no unknown ones."""
        members = self.members()
        missing = sorted(set(required) - members.keys())
        if missing:
            raise FileError(f"{self.where or 'it'} has no {', '.join(missing)}")
        for name in members.keys() - set(required) - set(optional):
            raise members[name].error("a member in this version of the format")
        return members

    def integer(self) -> int:
        """An integer from 0 up."""
        if type(self.value) is not int or not 0 <= self.value < _INTEGER_LIMIT:
            raise self.error("an integer from 0 to 2^64 - 1")
        return self.value

    def boolean(self) -> bool:
        """A truth value."""
        if type(self.value) is not bool:
            raise self.error("true or false")
        return self.value

    def text(self) -> str:
        """Text that can be written to a file: without surrogates."""
        if type(self.value) is not str or any("\ud800" <= c <= "\udfff" for c in self.value):
            raise self.error("text")
        return self.value

    def code(self) -> str:
        """Text without control characters other than white space, such as a line of code."""
        text = self.text()
        if any(unicodedata.category(c) == "Cc" and not c.isspace() for c in text):
            raise self.error("text without control characters")
        return text

    def line(self) -> str:
        """Text that cannot end a docstring or a comment that it is written into.

        Otherwise a hostile file could insert code into an emitted module.
        """
        text = self.text()
        if not text.isprintable() or "\\" in text or '"""' in text:
            raise self.error("one line of printable text without backslashes and triple quotes")
        return text

    def printable(self) -> str:
        """Text on one line."""
        text = self.text()
        if not text.isprintable():
            raise self.error("one line of printable text")
        return text

    def name(self) -> str:
        """A valid name for a value or a keyword in a module, normalized as Python does."""
        text = self.text()
        plain = unicodedata.normalize("NFKC", text) == text
        if not (text.isidentifier() and plain) or (text.startswith("__") and text.endswith("__")):
            raise self.error("a name that a value may have")
        return text

    def number(self) -> int | float:
        """An integer of at most 64 bits, or a finite floating-point number."""
        if type(self.value) is float and math.isfinite(self.value):  # 1e999 is not
            return self.value
        if type(self.value) is not int or not -_INTEGER_LIMIT < self.value < _INTEGER_LIMIT:
            raise self.error("a number of at most 64 bits")
        return self.value
