"""Random ATen programs are text: to be read, run, traced and kept in a bug report."""

import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from textwrap import indent
from typing import Any

import torch
from torch import Tensor

from tests.grammar.kinds import KINDS
from tests.grammar.production import operators_in

_NAME = re.compile(r"\bt\d+\b")

Returned = str | int | None
"""What a program returns: a value by its name, or a constant."""


@dataclass(frozen=True)
class AtenProgram:
    """A function of tensors, in ATen operators.

    Attributes:
        inputs: names and kinds (`tests.grammar.kinds`).
        lines: statements, such as "t3 = aten.relu.default(m0)".
        returns: names of values, and constants.
    """

    inputs: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    returns: tuple[Returned, ...]

    def __str__(self) -> str:
        return self.source()

    def source(self) -> str:
        """The text of the function; it wants `torch`, `aten` and `device`."""
        parameters = ", ".join(name for name, _ in self.inputs)
        returns = "".join(f"{value}, " for value in self.returns).strip()
        lines = [f"def program({parameters}):", *self.lines, f"return ({returns})"]
        return "\n    ".join(lines) + "\n"

    def function(self, device: str = "cpu") -> Callable[..., tuple[Any, ...]]:
        """The function; its constants are made on the device. Tracebacks show its lines."""
        source = self.source()
        file = f"<program {sha256(source.encode()).hexdigest()[:8]}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        scope: dict[str, Any] = {
            "torch": torch,
            "aten": torch.ops.aten,
            "device": torch.device(device),
        }
        exec(compile(source, file, "exec"), scope)
        function: Callable[..., tuple[Any, ...]] = scope["program"]
        return function

    def example_inputs(self, seed: int = 0, device: str = "cpu") -> tuple[Tensor, ...]:
        """New tensors of the inputs' kinds: the same bits for a seed, on each device."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(KINDS[kind].example(generator, device) for _, kind in self.inputs)

    def returning_what_is_unused(self) -> "AtenProgram":
        """The same program, but each value that no line uses is returned: nothing is in vain."""
        made: dict[str, None] = {}
        for line in self.lines:
            results, _, call = line.rpartition(" = ")
            for name in _NAME.findall(call):
                made.pop(name, None)
            made.update(dict.fromkeys(_NAME.findall(results)))
        return replace(self, returns=tuple(made))

    def operators(self) -> set[str]:
        """The operators that it calls, by name: "aten.add.Tensor"."""
        return operators_in("\n".join(self.lines))

    def as_script(self, check: str) -> str:
        """A file that checks this program when it is run from the repository's root.

        Args:
            check: statements that may use `program`, an AtenProgram; they raise if it fails.
        """
        fields = "".join(f"    {part!r},\n" for part in (self.inputs, self.lines, self.returns))
        return (
            "# Run it from the repository's root: PYTHONPATH=. python this_file.py\n#\n"
            f"{indent(self.source(), '# ')}\n"
            "from tests.grammar import AtenProgram\n\n"
            f"program = AtenProgram(\n{fields})\n{check}\n"
        )
