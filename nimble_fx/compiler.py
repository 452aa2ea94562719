"""From the ATen graphs of one Dynamo graph to programs that run: the whole story of a compile."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SubclassCreationMeta, ViewAndMutationMeta
from torch._guards import TracingContext
from torch.fx import GraphModule

from nimble_fx.codegen.load import file_name
from nimble_fx.devices import DeviceRuntime, device_for
from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.errors import FallbackError, PassError, ScheduleError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.ir.task_graph import TaskGraph, TensorType
from nimble_fx.ir.unique_names import unique
from nimble_fx.options import Options
from nimble_fx.pipeline import before_policies, schedule
from nimble_fx.program import Program, Version, register
from nimble_fx.runtime import gc_guard
from nimble_fx.runtime.capture_checks import nothing_to_freeze, refuse_what_cannot_be_captured
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.runtime.freeze import CaptureOptions
from nimble_fx.runtime.pool_group import Boxed, PoolGroup
from nimble_fx.selection.schedule_cache import TracedProgram
from nimble_fx.selection.select import illegal_schedule, select
from nimble_fx.serialization.atomic_write import write_atomically
from nimble_fx.torch_internals.dynamo_errors import (
    DynamoOptionError,
    DynamoPassError,
    DynamoUnsupportedError,
)
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.tracing.constant_folding import fold_constants
from nimble_fx.tracing.host_partition import split
from nimble_fx.tracing.move_to_device import move_to_device
from nimble_fx.tracing.reinplace_inputs import write_in_place
from nimble_fx.tracing.user_names import input_names, input_paths, program_name, renamed
from nimble_fx.verify import verify_contents

_log = logging.getLogger(__name__)

AS_TRACED = "as traced, without a schedule"


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
        names: Mapping[str, str] | None = None,
        keep: Callable[[Program], None] | None = None,
    ) -> None:
        """A compiler for the ATen graphs of one Dynamo graph.

        Args:
            gm: Dynamo's graph.
            options: what the user chose.
            names: what inputs are called whose names begin with these; see `naming.renamed`.
            keep: is given each program that is made; else the list of the process is.
        """
        self._options, self._keep = options, keep or register
        self._name = program_name(gm)
        self._input_names = [renamed(name, names or {}) for name in input_names(gm)]
        self._input_paths = input_paths(gm)
        self._wanted: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._static: set[str] = set()
        self._virtual = Virtual(options.seed) if options.device == "virtual" else None
        self._reporter = Reporter(options.on_fallback)
        self._capture_options = CaptureOptions(options.max_graphs, options.copy_outputs)
        self._pool_group: PoolGroup | None = None

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._learn_inputs(gm)
        return self.build(write_in_place(self._prepared(gm)), self._name, self._capture_options)

    def partition(self, joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
        """The forward and the backward graph of a joint one; constants are in both of them."""
        return min_cut_rematerialization_partition(self._prepared(joint), *args, **kwargs)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._learn_inputs(gm)
        capture_options = replace(
            self._capture_options, n_seen=_n_seen(TracingContext.get().fw_metadata)
        )
        return self.build(gm, f"{self._name} (training)", capture_options)

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        capture_options = replace(self._capture_options, is_backward=True)
        return self.build(gm, f"{self._name} (backward)", capture_options)

    def _prepared(self, gm: GraphModule) -> GraphModule:
        """The graph itself, changed: what each call would do alike is done, on the right device."""
        return fold_constants(move_to_device(gm), self._place)

    def _place(self, device: torch.device) -> torch.device | None:
        """Where the values of constants on a device are computed; None if that cannot be now."""
        known = device_for(device)
        can_compute = known is not None and known.hardware is not None and not known.is_capturing
        return device if can_compute else None

    def _learn_inputs(self, gm: GraphModule) -> None:
        """Which inputs are parameters and buffers, and what the user calls each.

        A backward graph takes some of them under the same names.
        """
        placeholders = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        if len(placeholders) == len(self._input_names):
            self._wanted = dict(zip(placeholders, self._input_names, strict=True))
            self._paths = dict(zip(placeholders, self._input_paths, strict=True))
        metadata = TracingContext.get().fw_metadata
        if metadata is not None:
            self._static = {placeholders[i] for i in metadata.static_input_indices}

    def _better_names(self, gm: GraphModule) -> dict[str, str]:
        """What the user calls the graph's inputs, where no other node is called that."""
        names = [node.name for node in gm.graph.nodes]
        renamed = [name for name in names if name in self._wanted]
        taken = set(names).difference(renamed)
        better = unique([self._wanted[name] for name in renamed], taken)
        return dict(zip(renamed, better, strict=True))

    def build(self, gm: GraphModule, name: str, capture_options: CaptureOptions) -> Boxed:
        """What runs in place of an ATen graph: what the host does of it, then a program."""
        parts = split(gm)
        if parts is None:
            return self._scheduled(gm, name, capture_options)
        for moved, given in parts.moved.items():
            self._wanted[moved], self._paths[moved] = self._wanted.get(given, given), ""
        n_seen = (
            None if capture_options.n_seen is None else parts.n_on_device(capture_options.n_seen)
        )
        return parts.run(
            self._scheduled(parts.device, name, replace(capture_options, n_seen=n_seen))
        )

    def _scheduled(self, gm: GraphModule, name: str, capture_options: CaptureOptions) -> Boxed:
        """What runs in place of a graph on one device, and keeps what is said of it."""
        run = self._built(gm, name, capture_options)
        run.reporter = self._reporter  # type: ignore[attr-defined]
        return run

    @gc_guard.paused()  # a compile makes much that lives, and no cycles
    def _built(self, gm: GraphModule, name: str, capture_options: CaptureOptions) -> Boxed:
        """The scheduled program; the graph itself where it cannot be scheduled."""
        try:
            unscheduled = self.trace(gm, name)
            program = self.program(unscheduled)
        except FallbackError:
            raise
        except UnsupportedError as error:
            self._reporter.report(_fallback(name, AS_TRACED, error))
            return _as_traced(gm)
        except ScheduleError as error:
            self._reporter.report(illegal_schedule(name, AS_TRACED, error))
            return _as_traced(gm)
        if _log.isEnabledFor(logging.INFO):  # the width takes time
            _log.info("%s", program.summary())
        _log.debug("%s: its module:\n%s", name, program.source)
        self._keep(program)
        self._pool_group = self._pool_group or PoolGroup(unscheduled.device)
        run = program.runner(unscheduled.device, self._pool_group, self._reporter, capture_options)
        run.program = program  # type: ignore[attr-defined]  # which lives as long
        return run

    def trace(self, gm: GraphModule, name: str) -> TracedProgram:
        """The task graph of an ATen graph with the user's names, and where it runs.

        Raises:
            UnsupportedError: it cannot be scheduled, or there is no such device.
            ScheduleError: it would write over what is still read.
        """
        names = self._better_names(gm)
        traced = trace(gm, name, names, self._static)
        graph = schedule(traced.graph, before_policies())
        _log.debug("%s: traced:\n%s", name, graph)
        if self._options.verify:
            verify_contents(graph, traced.graph)
        traced = replace(traced, graph=graph)
        paths = {new: self._paths[old] for old, new in names.items() if self._paths[old]}
        device = self._device(traced.graph)
        return TracedProgram(traced, paths, device, device.specs, known_sizes(gm))

    def program(self, unscheduled: TracedProgram) -> Program:
        """The program by the schedule that is chosen for it.

        Raises:
            ScheduleError: there is no legal one.
        """
        device, options = unscheduled.device, self._options
        reason = self._why_not_freeze(unscheduled.traced.graph, device)
        frozen = self._is_to_freeze(unscheduled.traced.graph, reason)
        timed = reason is None and device.can_time
        choice = select(unscheduled, options, self._reporter, frozen=frozen, timed=timed)
        versions = tuple(written(graph, source, options) for graph, source in choice.schedules)
        return Program(
            graph=versions[0].graph,
            source=versions[0].source,
            path=versions[0].path,
            file=versions[0].file,
            device=device.name,
            status=CaptureStatus(reason=reason),
            hardware=device.hardware or "",
            constants=unscheduled.traced.constants,
            parameters=unscheduled.paths,
            sizes=unscheduled.sizes,
            specs=unscheduled.specs,
            candidates=choice.candidates,
            contenders=versions if len(versions) > 1 else (),
            settled=choice.settled,
        )

    def _is_to_freeze(self, graph: TaskGraph, reason: str | None) -> bool:
        """Whether its schedule is to be one for replays; `reason` is why it is not frozen here."""
        return reason is None

    def _why_not_freeze(self, graph: TaskGraph, device: DeviceRuntime) -> str | None:
        """Why a program will not be captured; reported if it is slower than was asked for."""
        if not self._options.freeze:
            return "freeze=False"
        nothing = nothing_to_freeze(graph, device)
        if nothing is not None:
            return nothing
        try:
            refuse_what_cannot_be_captured(graph, device)
        except UnsupportedError as error:
            self._reporter.report(_fallback(graph.name, "unfrozen", error))
            return str(error)
        return None

    def _device(self, graph: TaskGraph) -> DeviceRuntime:
        """The one device of the graph's tensors, unless the user chose another."""
        types = [value.type for value in graph.values]
        used = next((t.device for t in types if isinstance(t, TensorType)), torch.device("cpu"))
        if self._virtual is not None and used.type == "cpu":
            return self._virtual
        if self._virtual is not None:
            raise DynamoOptionError(
                f"option device='virtual' is for models on the CPU; {graph.name} is on {used}",
                first_useful_frame=None,
            )
        device = device_for(used)
        if device is None:
            raise UnsupportedError(f"{graph.name} runs on {used}, which nimble_fx does not know")
        return device


def written(graph: TaskGraph, source: str, options: Options) -> Version:
    """A schedule and where its text was written, if the user asked for that."""
    name = file_name(graph.name, source)
    if options.dump is None:
        return Version(graph, source, None, f"<nimble_fx {name}>")
    path = write_atomically(Path(options.dump).expanduser().absolute(), name, source)
    return Version(graph, source, path, str(path))


def known_sizes(gm: GraphModule) -> dict[str, int]:
    """What the symbols among the sizes of a graph's inputs are in the call it is compiled for."""
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    shapes = [value.shape if isinstance(value, Tensor) else (value,) for value in values]
    sizes = [n for shape in shapes for n in shape if isinstance(n, torch.SymInt)]
    hints = {str(size.node.expr): size.node.hint for size in sizes}
    return {symbol: hint for symbol, hint in hints.items() if hint is not None}


def _as_traced(gm: GraphModule) -> Boxed:
    """The graph as PyTorch made it."""
    return make_boxed_func(gm.forward)  # type: ignore[no-any-return]


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


def _fallback(name: str, runs: str, error: UnsupportedError) -> Fallback:
    return Fallback(name, runs, str(error), error.node, error.source)
