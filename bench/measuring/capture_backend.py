"""Collects compiled programs, to time them without the overhead of `torch.compile`."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.pipeline import Policy
from nimble_fx.program import Program
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.this_machine import ThisMachine
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
        target = _Recording(options, self.programs, self._last)
        return lower(gm, example_inputs, Compiler(gm, options, target))

    @property
    def graphs(self) -> list[TaskGraph]:
        """The programs' schedules."""
        return [program.graph for program in self.programs]

    def again(self) -> None:
        """Runs each program again, with its last inputs."""
        for run, args in self._last.values():
            run(list(args))


class _Recording(ThisMachine):
    """Keeps the last inputs of each program, by a name of its own."""

    def __init__(
        self, options: Options, programs: list[Program], last: dict[str, tuple[Boxed, list[Any]]]
    ) -> None:
        super().__init__(options, programs.append)
        self._programs, self._last = programs, last

    def runner(
        self, gm: GraphModule, traced: TracedProgram, program: Program, capture: CaptureOptions
    ) -> Boxed:
        """The program, wrapped so that it records its inputs."""
        key = f"{len(self._programs)} {program.name}"
        run = super().runner(gm, traced, program, capture)

        @boxed
        def recording(args: list[Any]) -> Any:
            self._last[key] = run, list(args)
            return run(args)

        return recording
