"""Runs schedules on the virtual device: captured once, then replayed in many orders."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.devices import Stream
from nimble_fx.devices.cpu import Cpu
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.runtime.launch import Launcher
from tests.support.bits import assert_same_bits

SEED = 1
"""Of the random numbers that each run draws."""


class Play:
    """A capture of a schedule whose inputs lie in the device's memory, on streams by seed.

    So a program that frees an input too early overwrites it, as it would on a GPU.
    """

    def __init__(
        self,
        graph: TaskGraph,
        constants: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        seed: int = 0,
    ) -> None:
        self.device = Virtual(seed)
        self._launcher = Launcher(graph, load(emit(graph), "played.py"), constants, self.device)
        self._inputs, self._random = [x.clone() for x in inputs], Random(seed)
        written = {storage for task in graph.tasks for storage in task.writes}
        self._mutated = [
            i for i, value in enumerate(graph.inputs) if not written.isdisjoint(value.holds)
        ]
        self._capture = self.device.capture(graph.n_streams, self._run, self.device.pool())

    def seen_of(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Of what a call leaves, what `replay` returns: the outputs and the mutated inputs."""
        return [*outputs, *(inputs[i] for i in self._mutated)]

    def replay(self) -> list[Any]:
        """The outputs and the mutated inputs, after a replay in yet another order."""
        torch.manual_seed(SEED)
        self._capture.replay()
        return list(self._capture.outputs)

    def _run(self, streams: tuple[Stream, ...]) -> list[Any]:
        caller, *_ = owners = streams or self.device.streams(1)
        given = [self._upload(x, self._random.choice(owners), caller) for x in self._inputs]
        mutated = [given[i] for i in self._mutated]
        assert not any(value.static for value in self._launcher.graph.inputs)
        return [*self._launcher.enqueue(given, [], streams), *mutated]

    def _upload(self, x: Tensor, stream: Any, caller: Any) -> Tensor:
        """A copy in memory of `stream`, which `caller` comes after."""
        events = self.device.events(("before", "after"))
        events.before.record(caller)
        stream.wait_event(events.before)
        with stream:
            copy = x.clone()
        events.after.record(stream)
        caller.wait_event(events.after)
        return copy


def on_cpu(
    graph: TaskGraph, constants: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> list[Any]:
    """What a call leaves of the inputs, and its outputs, by the same kernels in launch order."""
    copies = [x.clone() for x in inputs]
    torch.manual_seed(SEED)
    outputs = Launcher(graph, load(emit(graph), "on_cpu.py"), constants, Cpu())(list(copies))
    return [*copies, *outputs]


def first_wrong_order(
    graph: TaskGraph,
    constants: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    left: Sequence[Any],
    n_orders: int = 30,
    n_captures: int = 3,
) -> int | None:
    """After how many orders a result differs, or an error comes; None if that never happens.

    Args:
        graph: a schedule, legal or not.
        constants: of its trace.
        inputs: what it is given.
        left: what a call leaves of the inputs, and its outputs.
        n_orders: how many orders to try in all.
        n_captures: in how many captures, each with the inputs' memory on other streams.
    """
    n = 0
    for seed in range(n_captures):
        try:
            play = Play(graph, constants, inputs, seed)
            wanted = play.seen_of(left[: len(inputs)], left[len(inputs) :])
            for _ in range(n_orders // n_captures):
                n += 1
                assert_same_bits(play.replay(), wanted, strides=False)
        except (AssertionError, RuntimeError, LookupError, NameError, ValueError):
            return n
    return None
