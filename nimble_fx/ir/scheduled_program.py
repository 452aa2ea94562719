"""A scheduled program: its task graph, its emitted module, its constants and device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from nimble_fx.ir.symbolic_sizes import Sizes
from nimble_fx.ir.task_graph import TaskGraph

_MAX_TITLE_BYTES = 100
"""The longest part of a file's name that names the program; file systems allow about 250 bytes."""


@dataclass(frozen=True)
class ScheduledProgram:
    """One schedule of a program, which is emitted, saved and run.

    Attributes:
        graph: the scheduled task graph.
        source: the text of the emitted module.
        device: the name of the device that it runs on, such as "cuda:0".
        hardware: the model of that device, such as a GPU's name; "" for any.
        constants: the values of the graph's constants by name.
        parameters: the model's names of parameters and buffers by the graph's names, such as
            "layers.0.weight" by "layers_0_weight".
        sizes: the symbols among the sizes of the inputs, each with its value in the call that
            compiled the program.
        folded: the program that computes the graph's last inputs, one for each of its outputs, from
            parameters and buffers alone; None if it takes no such inputs. See
            `options.fold_weights`.
        path: the file that the text was written to; None if it is in memory only.
    """

    graph: TaskGraph
    source: str
    device: str
    hardware: str = ""
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    folded: "ScheduledProgram | None" = None
    path: Path | None = None

    @property
    def n_folded(self) -> int:
        """How many of the graph's inputs, the last ones, `folded` computes."""
        return 0 if self.folded is None else len(self.folded.graph.outputs)

    @property
    def file(self) -> str:
        """The file name that tracebacks show for the emitted module."""
        return f"<nimble_fx {self.file_name}>" if self.path is None else str(self.path)

    @property
    def file_name(self) -> str:
        """The name of a file for the text, such as "Branchy.forward_1a2b3c4d.py"."""
        return file_name(self.graph.name, self.source)


def file_name(title: str, source: str) -> str:
    """A name that is the same for the same text: "Branchy.forward_1a2b3c4d.py"."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in title)
    short = safe.encode()[:_MAX_TITLE_BYTES].decode(errors="ignore")
    return f"{short}_{sha256(source.encode()).hexdigest()[:8]}.py"
