"""From the ATen graphs of one Dynamo graph to programs that run: the whole story of a compile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SubclassCreationMeta, ViewAndMutationMeta
from torch._guards import TracingContext
from torch.fx import GraphModule

from nimble_fx import garbage
from nimble_fx.arena import Arena, Boxed
from nimble_fx.cache import Cache, Unscheduled
from nimble_fx.devices import Device, device_for
from nimble_fx.devices.virtual import Virtual
from nimble_fx.dynamo_errors import DynamoOptionError, DynamoUnsupportedError
from nimble_fx.emit import emit
from nimble_fx.errors import ScheduleError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.freeze import (
    Terms,
    nothing_to_freeze,
    refuse_what_cannot_be_captured,
)
from nimble_fx.in_place import write_in_place
from nimble_fx.ir import TaskGraph, TensorType
from nimble_fx.load import file_name, write
from nimble_fx.naming import input_names, input_paths, program_name, renamed, unique
from nimble_fx.options import Options
from nimble_fx.pipeline import Pass, Policy, passes, schedule
from nimble_fx.program import Program, register
from nimble_fx.status import Status
from nimble_fx.trace import trace
from nimble_fx.verify import verify, verify_source


def lower(
    gm: GraphModule, example_inputs: Sequence[Any], compiler: "Compiler"
) -> Callable[..., Any]:
    """What runs in place of a Dynamo graph: its ATen graphs, each as `compiler` builds it."""
    compile_graphs = aot_autograd(
        fw_compiler=compiler.forward,
        bw_compiler=compiler.backward,
        inference_compiler=compiler.inference,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    try:
        return compile_graphs(gm, example_inputs)
    except UnsupportedError as error:
        raise DynamoUnsupportedError(error) from None


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
        self._terms = Terms(options.max_graphs, options.copy_outputs)
        self._arena: Arena | None = None

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._learn_inputs(gm)
        return self.build(write_in_place(gm), self._name, self._terms)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._learn_inputs(gm)
        terms = replace(self._terms, n_seen=_n_seen(TracingContext.get().fw_metadata))
        return self.build(gm, f"{self._name} (training)", terms)

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        terms = replace(self._terms, is_backward=True)
        return self.build(gm, f"{self._name} (backward)", terms)

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

    @garbage.paused()  # a compile makes much that lives, and no cycles
    def build(self, gm: GraphModule, name: str, terms: Terms) -> Boxed:
        """What runs in place of an ATen graph; the graph itself where it cannot be scheduled."""
        try:
            unscheduled = self.trace(gm, name)
        except UnsupportedError as error:
            return self._as_traced(gm, name, error)
        try:
            graph, source = legal_module(unscheduled, self._options, self._reporter)
        except ScheduleError as error:
            return self._as_traced(gm, name, error)
        program = self.program(unscheduled, graph, source)
        self._keep(program)
        self._arena = self._arena or Arena(unscheduled.device)
        return program.runner(unscheduled.device, self._arena, self._reporter, terms)

    def trace(self, gm: GraphModule, name: str) -> Unscheduled:
        """The task graph of an ATen graph with the user's names, and where it runs.

        Raises:
            UnsupportedError: it cannot be scheduled, or there is no such device.
        """
        names = self._better_names(gm)
        traced = trace(gm, name, names, self._static)
        paths = {new: self._paths[old] for old, new in names.items() if self._paths[old]}
        return Unscheduled(traced, paths, self._device(traced.graph))

    def _as_traced(
        self, gm: GraphModule, name: str, error: UnsupportedError | ScheduleError
    ) -> Boxed:
        self._reporter.report(_fallback(name, "as traced, without a schedule", error))
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]

    def program(self, unscheduled: Unscheduled, graph: TaskGraph, source: str) -> Program:
        """The program that a schedule and its text are."""
        path, file = written(graph, source, self._options)
        status = Status(reason=self._why_not_freeze(graph, unscheduled.device))
        return Program(
            graph=graph,
            source=source,
            path=path,
            file=file,
            device=unscheduled.device.name,
            status=status,
            hardware=unscheduled.device.hardware or "",
            constants=unscheduled.traced.constants,
            parameters=unscheduled.paths,
        )

    def _why_not_freeze(self, graph: TaskGraph, device: Device) -> str | None:
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

    def _device(self, graph: TaskGraph) -> Device:
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


def legal_module(
    program: Unscheduled, options: Options, reporter: Reporter
) -> tuple[TaskGraph, str]:
    """The schedule by the user's policy, and its text; the serial one if that is not legal."""
    graph = program.traced.graph
    limits = [n for n in (options.max_streams, program.device.max_streams) if n is not None]
    limit = min(limits, default=None)
    pipeline = passes(options.policy, limit)
    try:
        if options.cache_dir is not None:
            cache = Cache(Path(options.cache_dir).expanduser().absolute(), reporter.warn)
            return cache.get(program, pipeline, lambda: _emitted(graph, pipeline, options, limit))
        return _emitted(graph, pipeline, options, limit)
    except ScheduleError as error:
        serial = _emitted(graph, passes("serial", None), options)
        reporter.report(_fallback(graph.name, "on one stream", error, options.policy))
        return serial


def _emitted(
    graph: TaskGraph, pipeline: Sequence[Pass], options: Options, max_streams: int | None = None
) -> tuple[TaskGraph, str]:
    """A schedule and its text, both proved legal unless the user asked for no proof.

    Raises:
        ScheduleError: the schedule is not legal or has too many streams, or the text is not that
            schedule.
    """
    scheduled = schedule(graph, pipeline)
    if max_streams is not None and scheduled.n_streams > max_streams:
        raise ScheduleError(f"it has {scheduled.n_streams} streams, of at most {max_streams}")
    proved = options.verify or not isinstance(options.policy, str)  # a stranger's is never trusted
    if proved:
        verify(scheduled, graph)
    source = emit(scheduled)
    if proved:
        verify_source(source, scheduled)
    return scheduled, source


def written(graph: TaskGraph, source: str, options: Options) -> tuple[Path | None, str]:
    """Where a module's text was written, if the user asked for it, and what tracebacks call it."""
    name = file_name(graph.name, source)
    if options.dump is None:
        return None, f"<nimble_fx {name}>"
    path = write(Path(options.dump).expanduser().absolute(), name, source)
    return path, str(path)


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


def _fallback(
    name: str, runs: str, error: UnsupportedError | ScheduleError, policy: Policy = "nimble"
) -> Fallback:
    if isinstance(error, UnsupportedError):
        return Fallback(name, runs, str(error), error.node, error.source)
    if not isinstance(policy, str):
        return Fallback(name, runs, f"the schedule of policy {policy.name} is not legal: {error}")
    bug = "its schedule is not legal. This is a bug in nimble_fx, please report it"
    return Fallback(name, runs, f"{bug}: {error}")
