"""Makes a graph with each kind of kernels that the options ask for, and runs the fastest."""

from collections.abc import Callable, Mapping

from torch.fx import GraphModule

from nimble_fx.errors import ScheduleError, UnsupportedError
from nimble_fx.fallback import Fallback
from nimble_fx.ir.effects import Effects
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.rewrites.fuse_product_relu import fuse_product_relu
from nimble_fx.rewrites.reinplace.wrapped_calls import unwrapped, wrapped_nodes
from nimble_fx.runtime.fastest import KernelChoice, fastest
from nimble_fx.target import Target
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.tracing.source_lines import line_of, source_of

PYTORCHS, FOLDED, INDUCTORS = "PyTorch's", "PyTorch's, weights folded", "Inductor's"
"""Kinds of kernels, as a program's summary names them."""


class KernelKinds:
    """The kinds of kernels for the ATen graphs of one Dynamo graph."""

    def __init__(
        self, options: Options, target: Target, predicted_us: Callable[[GraphModule], float]
    ) -> None:
        """For the ATen graphs of one Dynamo graph.

        Args:
            options: the user's options.
            target: the target of the compile.
            predicted_us: returns the predicted time of an ATen graph, in microseconds.
        """
        self._options, self._target, self._predicted_us = options, target, predicted_us

    def graphs(self, gm: GraphModule, name: str, choice: KernelChoice) -> dict[str, GraphModule]:
        """The graph with each kind of kernels that the options ask for.

        A graph that cannot be scheduled with PyTorch's kernels has no others.

        Args:
            gm: an ATen graph of one device.
            name: the program's name.
            choice: receives why it does not have a kind.
        """
        kernels = self._options.kernels
        pytorchs = {PYTORCHS: fuse_product_relu(gm) if self._options.assume_finite else gm}
        if kernels == "aten":
            return pytorchs
        try:
            graph = trace(unwrapped(gm)).graph
        except UnsupportedError:  # reported where the graph is compiled; it runs as traced
            return pytorchs
        try:
            _refuse_wrapped_calls(gm)
            is_one = self._has_one_stream(graph, name)
            predicted_us = None if is_one else self._predicted_us
            inductors = {INDUCTORS: self._target.inductor_kernels(gm, predicted_us)}
        except (UnsupportedError, ScheduleError) as error:
            fallback = Fallback.caused_by(error, name, "with PyTorch's kernels")
            self._report_left_out(fallback, choice)
            return pytorchs
        return inductors if kernels == "inductor" else pytorchs | inductors

    def fastest(
        self, name: str, runs: Mapping[str, Boxed], gm: GraphModule, choice: KernelChoice
    ) -> Boxed:
        """The callable that runs the fastest of `runs`, which all compute the same as the graph.

        Args:
            name: the program's name.
            runs: the callables, by kind of kernels.
            gm: the graph.
            choice: receives the result.
        """
        if len(runs) == 1:
            ((choice.winner, run),) = runs.items()
            return run
        graph = trace(unwrapped(gm)).graph
        effects = Effects.of(graph)
        if effects.may_be_more:
            choice.winner = FOLDED if FOLDED in runs else PYTORCHS
            reason = "timing would call a custom operator more often than you do"
            choice.left_out.update(dict.fromkeys(runs.keys() - {choice.winner}, reason))
            return runs[choice.winner]
        device, warn = self._target.runtime_for(graph.device, name), self._target.reporter.warn
        return fastest(name, runs, effects, device, choice, warn)

    def _report_left_out(self, fallback: Fallback, choice: KernelChoice) -> None:
        """Reports that a program has no Inductor kernels; with "auto" that is not a fallback."""
        if self._options.kernels == "auto":
            choice.left_out[INDUCTORS] = reason = fallback.reason
            message = f"{fallback.program} can only have PyTorch's kernels: {reason}"
            self._target.reporter.warn(message)
        else:
            self._target.reporter.report(fallback)

    def _has_one_stream(self, graph: TaskGraph, name: str) -> bool:
        """Whether the schedule has one stream, whatever its tasks are."""
        policy = self._options.policy
        if policy == "serial" or self._options.max_streams == 1:
            return True
        if policy not in ("auto", "critical-path"):
            return False
        specs = self._target.specs or self._target.runtime_for(graph.device, name).specs
        return specs.max_streams == 1


def _refuse_wrapped_calls(gm: GraphModule) -> None:
    """Raises UnsupportedError for a custom operator or a Triton kernel that writes to an argument.

    The module that Inductor makes may call it before a kernel has read what it overwrites.
    """
    for node in wrapped_nodes(gm.graph):
        name = next(iter(node.args), "a Triton kernel of the model")
        raise UnsupportedError(
            f"{name} writes to its arguments, which kernels of Inductor may still have to read "
            f"[{line_of(node)}]",
            node.name,
            source_of(node),
        )
