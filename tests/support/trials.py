"""Schedules one random program and runs it in every way."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import load
from nimble_fx.devices.cpu import Cpu
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import NamedPolicy
from nimble_fx.passes.reinplace_pointwise import ReinplacePointwise
from nimble_fx.runtime.launch import Launcher
from nimble_fx.tracing.aten_to_tasks import Traced
from nimble_fx.verify import verify, verify_source
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.playing import SEED, Play
from tests.support.schedules import scheduled, traced


@dataclass(frozen=True)
class Trial:
    """A program and a way to schedule it.

    Attributes:
        program: what is traced.
        policy: how streams are assigned.
        max_streams: at most so many.
        seed: of the inputs, and of the orders on the virtual device.
    """

    program: AtenProgram
    policy: NamedPolicy = "nimble"
    max_streams: int | None = None
    seed: int = 0

    def check(self, n_orders: int = 10) -> TaskGraph:
        """Proves the schedule and runs it on the CPU and the virtual device; the schedule.

        Raises:
            ScheduleError: a proof fails.
            AssertionError: results, mutations or sharing of memory are not eager's, bit for bit.
        """
        result, graph = self.schedule()
        verify(graph, result.graph)
        verify_source(emit(graph), graph)
        expected = self._called(self.program.function())
        launcher = Launcher(graph, load(emit(graph), "trial.py"), result.constants, Cpu())
        ours = self._called(lambda *inputs: launcher(list(inputs)))
        assert_same_bits(ours, expected)
        assert_same_sharing(ours, expected)
        self._play(result, graph, expected, n_orders)
        return graph

    def schedule(self) -> tuple[Traced, TaskGraph]:
        """The program's trace and its schedule."""
        inputs = self.program.example_inputs(self.seed)
        result = traced(self.program.function(), *inputs, functional=False)
        result = replace(result, graph=ReinplacePointwise()(result.graph))
        return result, scheduled(result.graph, self.policy, self.max_streams)

    def expected(self) -> list[Any]:
        """Eager's inputs after a call, and its outputs."""
        return self._called(self.program.function())

    def as_script(self) -> str:
        """A file that runs this trial."""
        options = f"{self.policy!r}, {self.max_streams!r}, {self.seed!r}"
        check = f"Trial(program, {options}).check(n_orders=100)\n"
        return self.program.as_script(f"from tests.support.trials import Trial\n\n{check}")

    def _called(self, function: Any) -> list[Any]:
        inputs = self.program.example_inputs(self.seed)
        torch.manual_seed(SEED)
        return [*inputs, *function(*inputs)]

    def _play(self, result: Traced, graph: TaskGraph, expected: list[Any], n_orders: int) -> None:
        inputs = self.program.example_inputs(self.seed)
        play = Play(graph, result.constants, inputs, self.seed)
        wanted = play.seen_of(expected[: len(inputs)], expected[len(inputs) :])
        for _ in range(n_orders):
            assert_same_bits(play.replay(), wanted, strides=False)


@st.composite
def trials(draw: st.DrawFn, max_steps: int = 15) -> Trial:
    """Drawn programs by any policy, with and without a limit."""
    return Trial(
        draw(aten_programs(max_steps)),
        draw(st.sampled_from([*["nimble"] * 7, "serial"])),
        draw(st.sampled_from([None, None, None, 2, 3, 1])),
        draw(st.integers(0, 7)),
    )
