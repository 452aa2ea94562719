"""Compiles the ATen graphs of one Dynamo graph, from trace to runnable: all stages in order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from functorch.compile import min_cut_rematerialization_partition
from torch.fx import GraphModule

from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import FallbackError, PassError, ScheduleError, UnsupportedError
from nimble_fx.fallback import Fallback
from nimble_fx.graph_compiler import GraphCompiler, dump_source
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.kernel_kinds import FOLDED, PYTORCHS, KernelKinds
from nimble_fx.options import Options
from nimble_fx.rewrites.checkpointed_draws import keep_draws
from nimble_fx.rewrites.eliminate_common_subexpressions import eliminate_common_subexpressions
from nimble_fx.rewrites.fill_masked import fill_masked
from nimble_fx.rewrites.folding.fold_weights import Library, fold_weights
from nimble_fx.rewrites.folding.hoist_weights import Hoisted
from nimble_fx.rewrites.formats_of_views import keep_formats_of_views
from nimble_fx.rewrites.group_norm_gradients import keep_gradients_of_images
from nimble_fx.rewrites.merge_products import merge_products
from nimble_fx.rewrites.promised_strides import keep_promised_strides
from nimble_fx.rewrites.reinplace.mutating_operators import leave_wrapped
from nimble_fx.rewrites.reinplace.wrapped_calls import unwrapped
from nimble_fx.rewrites.remove_copies import remove_copies
from nimble_fx.rewrites.remove_identity_views import remove_identity_views
from nimble_fx.rewrites.simplify_embedding_bags import simplify_embedding_bags
from nimble_fx.rewrites.types_of_statistics import correct_types_of_statistics
from nimble_fx.runtime.batched_gradients import with_batched_gradients
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.compared_values import compared_once, is_comparable
from nimble_fx.runtime.compiled_graph import CompiledGraph, WatchedProgram
from nimble_fx.runtime.folding.folded_run import NOT_COUNTED, FoldedRun
from nimble_fx.runtime.folding.folded_weights import folded_weights
from nimble_fx.selection.select import predicted_us, select_schedules
from nimble_fx.target import Target
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.dynamo.errors import for_user
from nimble_fx.torch_internals.dynamo.names import TracingContext, aot_autograd, compiling
from nimble_fx.torch_internals.dynamo.tensor_guards import COMPARE_STRIDES_OF_WEIGHTS
from nimble_fx.torch_internals.graph_modules import calls, copied
from nimble_fx.torch_internals.kernels import cudnn
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.tracing.aot_metadata import (
    has_effects,
    n_user_outputs,
    returns_views_of_inputs,
)
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.tracing.constant_folding import fold_constants
from nimble_fx.tracing.dynamo_paths import rename_modules
from nimble_fx.tracing.effect_tokens import n_tokens, without_effect_tokens
from nimble_fx.tracing.host_partition import split
from nimble_fx.tracing.move_to_device import move_to_device
from nimble_fx.tracing.user_names import InputNames, program_name


def lower(
    gm: GraphModule, example_inputs: Sequence[Any], compiler: "Compiler"
) -> Callable[..., Any]:
    """Lowers a Dynamo graph to ATen graphs and returns the callable that replaces it.

    Args:
        gm, example_inputs: Dynamo's graph, and one set of inputs for it.
        compiler: builds the callable of each ATen graph.
    """
    watched: WatchedProgram | None = None

    def inference(graph: GraphModule, inputs: Sequence[Any]) -> Boxed:
        nonlocal watched
        program = compiler.inference(graph, inputs)
        if has_effects(TracingContext.get().fw_metadata):
            return program
        watched = WatchedProgram(program)
        return watched.run

    compile_graphs = aot_autograd(
        fw_compiler=compiler.forward,
        bw_compiler=compiler.backward,
        inference_compiler=inference,
        partition_fn=compiler.partition,
        keep_inference_input_mutations=True,
    )
    try:
        with compiling(backward_now=compiler.measures):
            run: Callable[..., Any] = compile_graphs(gm, example_inputs)
    except (UnsupportedError, PassError) as error:
        raise for_user(error) from None  # Dynamo's own wrapper drops the cause
    return run if watched is None else CompiledGraph(run, watched)


class Compiler:
    """Compiles the ATen graphs of one Dynamo graph: inference, or forward and backward."""

    def __init__(
        self,
        gm: GraphModule,
        options: Options,
        target: Target,
        own_source: Callable[[str], str] = str,
        has_guards: bool = True,
    ) -> None:
        """A compiler for the ATen graphs of one Dynamo graph.

        Args:
            gm: Dynamo's graph.
            options: the user's options.
            target: what it is compiled for.
            own_source: translates Dynamo's sources to those in the user's function.
            has_guards: whether each call checks PyTorch's guards.
        """
        self._options, self._target = options, target
        self._are_guarded = has_guards and COMPARE_STRIDES_OF_WEIGHTS
        rename_modules(gm, own_source)
        self._name = program_name(gm)
        self._has_absolute_views = calls(gm, "as_strided")
        self._inputs = InputNames(gm, own_source)
        self._capture = CaptureOptions(
            options.max_graphs, options.copy_outputs, are_guarded=self._are_guarded
        )
        self._kernels = KernelKinds(options, target, self._predicted_us)

    @property
    def measures(self) -> bool:
        """Whether first calls time Inductor's kernels, and backwards are compiled with forwards."""
        return self._options.kernels == "auto"

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compiles the ATen graph of a model without gradients."""
        self._inputs.match_inputs(gm, TracingContext.get().fw_metadata, n_tokens(gm))
        graph_compiler = self._graph_compiler(gm, self._name, self._capture_options())
        gm = self._prepared(without_effect_tokens(gm))
        traced = copied(gm) if self._options.verify == "values" else gm
        gm = eliminate_common_subexpressions(remove_identity_views(gm))
        gm = simplify_embedding_bags(gm)
        placed = self._placed(gm) if self._options.fold_weights else None
        if placed is None:
            return self._compared(self._build(graph_compiler, gm), traced)
        graph, device = placed
        merged = self._merged(gm, device)
        hoisted = None if written_inputs(graph) else self._hoisted(merged, device)
        run: Boxed | None = None
        if hoisted is not None:
            folded = partial(self._folded_run, graph_compiler, gm, hoisted, device)
            run = self._if_possible(folded)
        return self._compared(run or self._build(graph_compiler, merged), traced)

    def _merged(self, gm: GraphModule, device: DeviceRuntime) -> GraphModule:
        """The graph with parallel products merged on a CPU; a GPU may run them concurrently."""
        return merge_products(gm, self._inputs.weights) if device.name == "cpu" else gm

    def _hoisted(self, gm: GraphModule, device: DeviceRuntime) -> Hoisted | None:
        """The graph with its weights folded; None if it has none, or must not fold them.

        Args:
            gm: a graph that writes to none of its inputs, which could be views of weights.
            device: the device that runs it.
        """
        library = _library(device)
        if library != "oneDNN" and self._options.fold_weights == "auto":
            return None  # writes that PyTorch does not count would go unnoticed
        return fold_weights(gm, self._inputs.weights, library, self._options.assume_finite)

    def _if_possible(self, folded_run: Callable[[], Boxed]) -> Boxed | None:
        """The callable with folded weights; None if making it fails, which is reported."""
        try:
            return folded_run()
        except FallbackError:
            raise
        except (UnsupportedError, ScheduleError) as error:
            fallback = Fallback.caused_by(error, self._name, "without folded weights")
            self._target.reporter.report(fallback)
            return None

    def _folded_run(
        self,
        graph_compiler: GraphCompiler,
        gm: GraphModule,
        hoisted: Hoisted,
        device: DeviceRuntime,
    ) -> Boxed:
        """The callable of a graph whose weights are folded."""
        unfolded = self._target.as_traced(gm)
        runs = dict[str, Boxed]()
        is_optional = self._options.fold_weights == "auto" and self._options.kernels != "inductor"
        if is_optional:
            runs[PYTORCHS] = graph_compiler.compile(gm, gm)
        weights = self._weights_program(graph_compiler, hoisted)
        graph_compiler = replace(graph_compiler, folded=weights)
        self._inputs.add_folded(hoisted.sources_by_result)
        graphs = self._kernels.graphs(hoisted.main, self._name, graph_compiler.choice)
        for kind, main in graphs.items():
            run = graph_compiler.compile(main, hoisted.main)
            if self._target.runs_programs:
                folded = folded_weights(
                    trace(unwrapped(main)).graph, weights, device, self._are_guarded
                )
                run = FoldedRun(
                    run,
                    folded,
                    hoisted.sources,
                    hoisted.kept,
                    unfolded,
                    self._report_unfolded,
                    may_stay_unfolded=is_optional,
                )
            else:
                run = unfolded
            runs[FOLDED if kind == PYTORCHS else kind] = run
        return self._kernels.fastest(self._name, runs, gm, graph_compiler.choice)

    def _report_unfolded(self) -> None:
        fallback = Fallback(self._name, "with PyTorch's kernels", NOT_COUNTED)
        self._target.reporter.report(fallback)

    def _compared(self, run: Boxed, traced: GraphModule) -> Boxed:
        """The callable, compared with the traced graph if `verify="values"` and it can be."""
        if self._options.verify == "values" and is_comparable(traced):
            return compared_once(run, traced, self._name)
        return run

    def _placed(self, gm: GraphModule) -> tuple[TaskGraph, DeviceRuntime] | None:
        """The task graph of an ATen graph and what runs it; None if it cannot be scheduled."""
        try:
            graph = trace(unwrapped(gm)).graph
            return graph, self._target.runtime_for(graph.device, self._name)
        except UnsupportedError:
            return None  # which `_build` reports

    def _weights_program(self, graph_compiler: GraphCompiler, hoisted: Hoisted) -> ScheduledProgram:
        """The program that computes the folded weights, on one stream."""
        named = replace(graph_compiler, name=f"{self._name} (weights)")
        traced = named.trace(hoisted.weights)
        options = replace(Options(), policy="serial", verify=self._options.verify)
        selection = select_schedules(
            traced, options, self._target.reporter, frozen=False, timed=False
        )
        return dump_source(selection.schedules[0], self._options.dump, self._target.reporter.warn)

    def _capture_options(self) -> CaptureOptions:
        views = returns_views_of_inputs(TracingContext.get().fw_metadata)
        return replace(self._capture, returns_views_of_inputs=views)

    def partition(self, joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
        """Splits a joint graph into forward and backward; each has its own copy of constants."""
        parts = min_cut_rematerialization_partition(self._prepared(joint), *args, **kwargs)
        keep_draws(*parts)
        forward, backward = parts
        return remove_identity_views(forward), remove_identity_views(backward, is_backward=True)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compiles the forward, which also returns the tensors that it saves for the backward."""
        metadata = TracingContext.get().fw_metadata
        self._inputs.match_inputs(gm, metadata)
        if self.measures and metadata is not None:
            metadata.bw_donated_idxs = []  # or a backward that is compiled now retains no graph
        capture = replace(self._capture_options(), n_user_outputs=n_user_outputs(metadata))
        graph_compiler = self._graph_compiler(gm, f"{self._name} (training)", capture)
        return self._build(graph_compiler, without_effect_tokens(gm))

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compiles the backward, whose inputs are saved tensors and gradients of the outputs."""
        gm = without_effect_tokens(gm)
        name, capture = f"{self._name} (backward)", replace(self._capture, is_backward=True)
        run = self._build(self._graph_compiler(gm, name, capture), gm)
        as_traced = self._target.as_traced(gm)
        return with_batched_gradients(run, gm, name, as_traced, self._target.reporter)

    def _prepared(self, gm: GraphModule) -> GraphModule:
        """Moves a graph to one device, folds its constants, keeps types and strides, in place.

        Calls on views stay wrapped if the model makes views at offsets in the memory.
        """
        place = self._target.constants_on
        if self._has_absolute_views:
            leave_wrapped(gm.graph)
        gm = fill_masked(remove_copies(fold_constants(move_to_device(gm), place)), place)
        gm = correct_types_of_statistics(gm)
        gm = keep_gradients_of_images(keep_formats_of_views(gm))
        return keep_promised_strides(gm, place)

    def _build(self, graph_compiler: GraphCompiler, gm: GraphModule) -> Boxed:
        """The callable for an ATen graph: its host part, then the program of its device part."""
        parts = split(gm)
        if parts is None:
            return self._by_kernels(graph_compiler, gm)
        self._inputs.rename_moved(parts.moved)
        capture = graph_compiler.capture
        if capture.n_user_outputs is not None:
            n_on_device = parts.n_on_device(capture.n_user_outputs)
            capture = replace(capture, n_user_outputs=n_on_device)
        return parts.run(self._by_kernels(replace(graph_compiler, capture=capture), parts.device))

    def _by_kernels(self, graph_compiler: GraphCompiler, gm: GraphModule) -> Boxed:
        """The callable for a graph of one device, with the kernels that the options ask for."""
        name, choice = graph_compiler.name, graph_compiler.choice
        graphs = self._kernels.graphs(gm, name, choice)
        runs = {kind: graph_compiler.compile(graph, gm) for kind, graph in graphs.items()}
        return self._kernels.fastest(name, runs, gm, choice)

    def _predicted_us(self, gm: GraphModule) -> float:
        """The predicted time of the fastest schedule of an ATen graph, in microseconds."""
        traced = self._graph_compiler(gm, self._name, self._capture).trace(gm)
        return predicted_us(traced, self._options, self._target.reporter)

    def _graph_compiler(self, gm: GraphModule, name: str, capture: CaptureOptions) -> GraphCompiler:
        """The compiler of a graph as PyTorch traced it."""
        n_traced = _n_operators(gm)
        return GraphCompiler(self._options, self._target, self._inputs, name, capture, n_traced)


def _n_operators(gm: GraphModule) -> int:
    return sum(isinstance(node.target, OpOverload) for node in gm.graph.nodes)


def _library(device: DeviceRuntime) -> Library | None:
    """The library whose convolutions a device can run; None for the virtual device."""
    if device.name == "cpu":
        return "oneDNN"
    return "cuDNN" if device.name.startswith("cuda") and cudnn.is_enabled() else None
