"""From the ATen graphs of one Dynamo graph to programs that run: the whole story of a compile."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.specs import Device
from nimble_fx.errors import PassError, UnsupportedError
from nimble_fx.fallback import Reporter
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.options import Options
from nimble_fx.pipeline import before_policies, schedule
from nimble_fx.program import Program
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.runtime.freeze import CaptureOptions
from nimble_fx.runtime.pool_group import Boxed
from nimble_fx.selection.select import select
from nimble_fx.selection.traced_program import TracedProgram
from nimble_fx.serialization.atomic_write import write_atomically
from nimble_fx.torch_internals.dynamo import (
    SubclassCreationMeta,
    TracingContext,
    ViewAndMutationMeta,
    aot_autograd,
)
from nimble_fx.torch_internals.dynamo_errors import DynamoPassError, DynamoUnsupportedError
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.tracing.constant_folding import fold_constants
from nimble_fx.tracing.host_partition import split
from nimble_fx.tracing.move_to_device import move_to_device
from nimble_fx.tracing.reinplace_inputs import reinplace_inputs
from nimble_fx.tracing.user_names import InputNames, program_name
from nimble_fx.verify import verify_contents

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Freezing:
    """Whether a program is scheduled for replays of a CUDA graph, and whether it is captured here.

    Attributes:
        why_not_here: why this process does not capture it; None if it does.
        is_for_replay: whether its schedule is one for replays, here or elsewhere.
    """

    why_not_here: str | None
    is_for_replay: bool


@dataclass(frozen=True)
class Target:
    """A device, and what runs in place of each ATen graph that is compiled for it.

    A target for another purpose is a `dataclasses.replace` of one of these fields.

    Attributes:
        reporter: lists what runs slower than the user asked for.
        runtime_for: the device that runs a graph as it was traced; raises UnsupportedError if there
            is none.
        retarget: the same graph with the types and devices that it has on the target.
        specs: the figures to schedule for; None for those of the device that runs it.
        constants_on: where constants of a device are computed; None if that is not possible now.
        freezing: whether a program is captured.
        executable: compiles an ATen graph with a compiler and returns what runs in its place.
    """

    reporter: Reporter
    runtime_for: Callable[[TaskGraph], DeviceRuntime]
    retarget: Callable[[TaskGraph], TaskGraph]
    specs: Device | None
    constants_on: Callable[[torch.device], torch.device | None]
    freezing: Callable[[TaskGraph, DeviceRuntime], Freezing]
    executable: Callable[["Compiler", GraphModule, str, CaptureOptions], Boxed]


def lower(
    gm: GraphModule, example_inputs: Sequence[Any], compiler: "Compiler"
) -> Callable[..., Any]:
    """What runs in place of a Dynamo graph: its ATen graphs, each as `compiler` builds it."""
    compile_graphs = aot_autograd(
        fw_compiler=compiler.forward,
        bw_compiler=compiler.backward,
        inference_compiler=compiler.inference,
        partition_fn=compiler.partition,
        keep_inference_input_mutations=True,
    )
    try:
        return compile_graphs(gm, example_inputs)
    except UnsupportedError as error:
        raise DynamoUnsupportedError(error) from None
    except PassError as error:
        raise DynamoPassError(error) from None  # Dynamo would forget the cause


class Compiler:
    """Compiles the ATen graphs of one Dynamo graph: inference, or forward and backward."""

    def __init__(
        self,
        gm: GraphModule,
        options: Options,
        target: Target,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """A compiler for the ATen graphs of one Dynamo graph.

        Args:
            gm: Dynamo's graph.
            options: the user's.
            target: what it is compiled for.
            names: replaces the beginnings of inputs' names; see `user_names.renamed`.
        """
        self._options, self._target = options, target
        self._name = program_name(gm)
        self._inputs = InputNames(gm, names or {})
        self._capture = CaptureOptions(options.max_graphs, options.copy_outputs)

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._inputs.learn(gm, TracingContext.get().fw_metadata)
        return self.build(reinplace_inputs(self._prepared(gm)), self._name, self._capture)

    def partition(self, joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
        """The forward and the backward graph of a joint one; constants are in both of them."""
        return min_cut_rematerialization_partition(self._prepared(joint), *args, **kwargs)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        metadata = TracingContext.get().fw_metadata
        self._inputs.learn(gm, metadata)
        capture = replace(self._capture, n_seen=_n_seen(metadata))
        return self.build(gm, f"{self._name} (training)", capture)

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        capture = replace(self._capture, is_backward=True)
        return self.build(gm, f"{self._name} (backward)", capture)

    def _prepared(self, gm: GraphModule) -> GraphModule:
        """The graph itself, changed: constants are folded, and values are on the right device."""
        return fold_constants(move_to_device(gm), self._target.constants_on)

    def build(self, gm: GraphModule, name: str, capture: CaptureOptions) -> Boxed:
        """What runs in place of an ATen graph: what the host does of it, then a program."""
        parts = split(gm)
        if parts is None:
            return self._target.executable(self, gm, name, capture)
        self._inputs.rename_moved(parts.moved)
        n_seen = None if capture.n_seen is None else parts.n_on_device(capture.n_seen)
        capture = replace(capture, n_seen=n_seen)
        return parts.run(self._target.executable(self, parts.device, name, capture))

    def trace(self, gm: GraphModule, name: str) -> TracedProgram:
        """The task graph of an ATen graph with the user's names, and where it runs.

        Raises:
            UnsupportedError: it cannot be scheduled, or there is no such device.
            ScheduleError: it would write over what is still read.
        """
        names = self._inputs.better(gm)
        traced = trace(gm, name, names, self._inputs.static)
        graph = schedule(traced.graph, before_policies())
        _log.debug("%s: traced:\n%s", name, graph)
        if self._options.verify:
            verify_contents(graph, traced.graph)
        device = self._target.runtime_for(graph)
        return TracedProgram(
            traced=replace(traced, graph=self._target.retarget(graph)),
            parameters=self._inputs.parameters(names),
            device=device,
            specs=self._target.specs or device.specs,
            sizes=known_sizes(gm),
        )

    def program(self, traced: TracedProgram) -> Program:
        """The program by the schedule that is chosen for it.

        Raises:
            ScheduleError: there is no legal one.
        """
        freezing = self._target.freezing(traced.traced.graph, traced.device)
        timed = freezing.why_not_here is None and traced.device.can_time
        selection = select(
            traced,
            self._options,
            self._target.reporter,
            frozen=freezing.is_for_replay,
            timed=timed,
        )
        schedules = [written(each, self._options.dump) for each in selection.schedules]
        return Program(
            scheduled=schedules[0],
            status=CaptureStatus(reason=freezing.why_not_here),
            specs=traced.specs,
            candidates=selection.candidates,
            alternatives=tuple(schedules[1:]),
            on_winner=selection.on_winner,
        )


def written(
    scheduled: ScheduledProgram, directory: str | os.PathLike[str] | None
) -> ScheduledProgram:
    """A schedule whose text is written to a directory, if the user named one."""
    if directory is None:
        return scheduled
    folder = Path(directory).expanduser().absolute()
    path = write_atomically(folder, scheduled.file_name, scheduled.source)
    return replace(scheduled, path=path)


def known_sizes(gm: GraphModule) -> dict[str, int]:
    """What the symbols among the sizes of a graph's inputs are in the call it is compiled for."""
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    shapes = [value.shape if isinstance(value, Tensor) else (value,) for value in values]
    sizes = [n for shape in shapes for n in shape if isinstance(n, torch.SymInt)]
    hints = {str(size.node.expr): size.node.hint for size in sizes}
    return {symbol: hint for symbol, hint in hints.items() if hint is not None}


def _n_seen(metadata: ViewAndMutationMeta | None) -> int | None:
    """How many outputs of a forward graph the user sees, or autograd hands on; None if unknown.

    For tensor subclasses AOTAutograd counts their outputs, not the graph's.
    """
    if metadata is None:
        return None
    kinds = [*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]
    if any(isinstance(kind, SubclassCreationMeta) for kind in kinds):
        return None
    return len(metadata.tokens) + metadata.num_forward
