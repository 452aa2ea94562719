"""Collects compiled programs, to time them without the overhead of `torch.compile`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.pipeline import Policy
from nimble_fx.program import Program
from nimble_fx.runtime.capture.freeze import CaptureOptions
from nimble_fx.target import ProgramMaker
from nimble_fx.this_machine import this_machine
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed


class KeptPrograms:
    """A backend for `torch.compile` that keeps each program and its last inputs.

    Attributes:
        policy: the policy of the programs.
        programs: the programs, in the order in which they were made.
    """

    def __init__(self, policy: Policy) -> None:
        self.__name__ = "capture_backend"  # its name in PyTorch's logs
        self.policy = policy
        self.programs: list[Program] = []
        self._last: dict[str, tuple[Boxed, list[Any]]] = {}

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        options = Options(policy=self.policy, on_fallback="error", fold_weights=False)
        here = this_machine(options, on_program=self.programs.append)

        def compile_graph(
            maker: ProgramMaker, gm: GraphModule, name: str, capture: CaptureOptions
        ) -> Boxed:
            """The program, wrapped so that it records its inputs."""
            number = len(self.programs)
            return self._noting(f"{number} {name}", here.compile_graph(maker, gm, name, capture))

        target = replace(here, compile_graph=compile_graph)
        return lower(gm, example_inputs, Compiler(gm, options, target))

    @property
    def graphs(self) -> list[TaskGraph]:
        """The programs' schedules."""
        return [program.graph for program in self.programs]

    def again(self) -> None:
        """Runs each program again, with its last inputs."""
        for run, args in self._last.values():
            run(list(args))

    def _noting(self, name: str, run: Boxed) -> Boxed:
        """Wraps a program so that it records its inputs."""

        @boxed
        def noting(args: list[Any]) -> Any:
            self._last[name] = run, list(args)
            return run(args)

        return noting
