"""Compiled programs without what `torch.compile` does around them, so that they alone are timed."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.pipeline import Policy
from nimble_fx.program import Program
from nimble_fx.runtime.freeze import CaptureOptions
from nimble_fx.runtime.pool_group import Boxed


class KeptPrograms:
    """A backend for `torch.compile` that keeps each program, and what it was called with last.

    Attributes:
        policy: what programs are scheduled by.
        programs: in the order in which they were made.
    """

    def __init__(self, policy: Policy) -> None:
        self.__name__ = "kept_programs"  # what torch's logs call it
        self.policy = policy
        self.programs: list[Program] = []
        self._last: dict[str, tuple[Boxed, list[Any]]] = {}

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lower(gm, example_inputs, _Keeping(gm, self))

    @property
    def graphs(self) -> list[TaskGraph]:
        """The programs' schedules."""
        return [program.graph for program in self.programs]

    def again(self) -> None:
        """Each program once more, with what it was given last."""
        for run, args in self._last.values():
            run(list(args))

    def keeping(self, name: str, run: Boxed) -> Boxed:
        """A program that notes what it is given."""

        def noting(args: list[Any]) -> Any:
            self._last[name] = run, list(args)
            return run(args)

        noting._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return noting


class _Keeping(Compiler):
    def __init__(self, gm: GraphModule, kept: KeptPrograms) -> None:
        options = Options(policy=kept.policy, on_fallback="error")
        super().__init__(gm, options, keep=kept.programs.append)
        self._kept = kept

    def build(self, gm: GraphModule, name: str, capture_options: CaptureOptions) -> Boxed:
        """The program, which notes what it is given."""
        return self._kept.keeping(
            f"{len(self._kept.programs)} {name}", super().build(gm, name, capture_options)
        )
