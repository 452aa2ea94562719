"""Breaks a schedule by hand in three ways, and shows the errors and the wrong results.

It edits the text of a small program. The verifier reads the edited text and says what races; then
the text runs on the virtual device, in many orders.
"""

import difflib
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import nimble_fx
from bench.command_line.console import say
from nimble_fx.codegen.load import load
from nimble_fx.devices import Stream
from nimble_fx.devices.cpu import Cpu
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.errors import ScheduleError
from nimble_fx.program import Program
from nimble_fx.runtime.launch import Launcher

N_ORDERS = 100


class Cell(nn.Module):
    """A stem and two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.stem(x))
        left = torch.relu(self.left(y))
        right = torch.sigmoid(self.right(y))
        return left * right


def late_wait(text: str) -> str:
    """The product does not wait for its right factor; only the end does."""
    text = _replaced(text, "        s0.wait_event(e.sigmoid)\n", "")
    return _replaced(text, "    return", "    s0.wait_event(e.sigmoid)\n    return")


def early_free(text: str) -> str:
    """y is freed as soon as the right branch has launched its reader."""
    used = "        addmm_2 = aten.addmm.default(p.right_bias, tanh, t_2)  # f32[4, 8]\n"
    text = _replaced(text, "        del tanh, relu, sigmoid\n", "        del relu, sigmoid\n")
    return _replaced(text, used, used + "        del tanh\n")


def other_stream(text: str) -> str:
    """The left branch's relu moves to the right branch's stream."""
    relu = "        relu = aten.relu_.default(addmm_1)  # f32[4, 8]\n"
    forked = "        s1.wait_event(e.tanh)\n"
    return _replaced(text, relu, f"    with s1:\n{forked}{relu}    with s0:\n")


EDITS: Sequence[Callable[[str], str]] = (late_wait, early_free, other_stream)


@dataclass(frozen=True)
class Doubt:
    """The outcome of an edit.

    Attributes:
        title: the edit in words.
        lines: the unified diff of the text.
        refused: the verifier's error; None if it accepts the text.
        n_wrong: in how many of `N_ORDERS` orders the result differs from eager's.
    """

    title: str
    lines: tuple[str, ...]
    refused: str | None
    n_wrong: int


def doubt(edit: Callable[[str], str], program: Program, inputs: list[Tensor]) -> Doubt:
    """Edits the program's text, proves it, and runs it.

    Args:
        edit: returns the edited text.
        program: the program whose text to edit.
        inputs: the program's inputs, in the graph's order.
    """
    text = edit(program.source)
    before, after = program.source.splitlines(), text.splitlines()
    _, _, *lines = difflib.unified_diff(before, after, n=1, lineterm="")
    try:
        nimble_fx.verify_source(text)
        refused = None
    except ScheduleError as error:
        refused = str(error)
    n_wrong = count_wrong(text, program, inputs)
    return Doubt((edit.__doc__ or "").splitlines()[0], tuple(lines), refused, n_wrong)


def count_wrong(text: str, program: Program, inputs: list[Tensor]) -> int:
    """The number of orders on the virtual device in which the text's result is wrong."""
    proved = Launcher(program.graph, load(program.source, "proved.py"), {}, Cpu())
    (expected,) = proved(list(inputs))
    device = Virtual()
    doubted = Launcher(program.graph, load(text, "doubted.py"), {}, device)
    given, static = doubted.split(inputs)

    def run(streams: tuple[Stream, ...]) -> Sequence[Any]:
        return doubted.enqueue(list(given), static, streams)

    capture = device.capture(program.graph.n_streams, run, device.pool())
    n_wrong = 0
    for _ in range(N_ORDERS):
        capture.replay()
        n_wrong += not torch.equal(capture.outputs[0], expected)
    return n_wrong


def compiled_cell() -> tuple[Program, list[Tensor]]:
    """The program of a cell, and its inputs."""
    model, x = Cell(), torch.randn(4, 8)
    known = len(nimble_fx.programs())
    with torch.no_grad():
        torch.compile(model, backend="nimble", options={"policy": "nimble"})(x)
    program = nimble_fx.programs()[known]
    tensors = {name.replace(".", "_"): p.detach() for name, p in model.named_parameters()}
    tensors["x"] = x
    return program, [tensors[value.name] for value in program.graph.inputs]


def _replaced(text: str, old: str, new: str) -> str:
    """The text with one line replaced.

    Raises:
        ValueError: there is no such line, or there are several.
    """
    before, *after = f"\n{text}".split(f"\n{old}")
    if len(after) != 1:
        raise ValueError(f"the text has this line {len(after)} times: {old}")
    return f"{before}\n{new}{after[0]}".removeprefix("\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Edits, proves, runs and prints; returns 1 if the verifier accepts a broken text."""
    ArgumentParser("python -m bench.mutation_demo", description=__doc__).parse_args(argv)
    torch.manual_seed(0)
    program, inputs = compiled_cell()
    nimble_fx.verify_source(program.source)
    say(program.source.split("\n\n\n")[1])
    doubts = [doubt(edit, program, inputs) for edit in EDITS]
    for number, one in enumerate(doubts, 1):
        say(f"\n--- {number}. {one.title} ---\n")
        say("\n".join(one.lines))
        say(f"\n{one.refused or 'accepted'}", good=one.refused is not None)
        say(f"\nOn the virtual device: wrong in {one.n_wrong} of {N_ORDERS} orders.")
    return int(any(one.refused is None for one in doubts))


if __name__ == "__main__":
    sys.exit(main())
