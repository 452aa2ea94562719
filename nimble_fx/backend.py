"""`torch.compile(model, backend="nimble")`: the whole story of a compile."""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import ShortenTraceback
from torch._guards import TracingContext
from torch.fx import GraphModule

from nimble_fx import program as registry
from nimble_fx.cache import Cache, Unscheduled
from nimble_fx.devices import Device, device_for
from nimble_fx.devices.virtual import Virtual
from nimble_fx.emit import emit
from nimble_fx.errors import NimbleWarning, OptionError, ScheduleError, UnsupportedError
from nimble_fx.freeze import Status, why_not_freeze
from nimble_fx.ir import TaskGraph, TensorType
from nimble_fx.load import file_name, write
from nimble_fx.naming import input_names, input_paths, program_name, unique
from nimble_fx.options import Options
from nimble_fx.pipeline import Pass, passes, schedule
from nimble_fx.program import Boxed, Program, register
from nimble_fx.trace import trace
from nimble_fx.verify import verify, verify_source


def nimble(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend: schedules, emits, verifies and loads a Dynamo graph; freezes it on CUDA.

    Args:
        gm: Dynamo's graph of the user's function.
        example_inputs: one set of inputs for it.
        mode: `torch.compile`'s mode.
        options: see `nimble_fx.options.Options`.

    Raises:
        OptionError: before any work, if an option is not valid.
    """
    compiler = _Compiler(gm, _parse(mode, options))
    return aot_autograd(
        fw_compiler=compiler.forward,
        bw_compiler=compiler.backward,
        inference_compiler=compiler.inference,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


nimble.reset = registry.clear  # type: ignore[attr-defined]  # torch.compiler.reset() looks here


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Within, Python does not look for garbage: a compile makes much that lives, and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Compiler:
    """Compiles the ATen graphs of one Dynamo graph: inference, or forward and backward."""

    def __init__(self, gm: GraphModule, options: Options) -> None:
        self._options = options
        self._name = program_name(gm)
        self._input_names = input_names(gm)
        self._input_paths = input_paths(gm)
        self._wanted: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._static: set[str] = set()
        self._virtual = Virtual(options.seed) if options.device == "virtual" else None
        self._warned = False

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._learn_inputs(gm)
        return self._compile(gm, self._name)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        self._learn_inputs(gm)
        return self._compile(gm, f"{self._name} (training)")

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Boxed:
        return self._compile(gm, f"{self._name} (backward)")

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

    @_without_garbage_collection()
    def _compile(self, gm: GraphModule, name: str) -> Boxed:
        try:
            names = self._better_names(gm)
            traced = trace(gm, name, names, self._static)
            paths = {new: self._paths[old] for old, new in names.items() if self._paths[old]}
            device = self._device(traced.graph)
            unscheduled = Unscheduled(traced, paths, device)
            graph, source = _legal_module(unscheduled, self._options)
        except (UnsupportedError, ScheduleError) as error:
            bug = isinstance(error, ScheduleError)
            report = "This is a bug in nimble_fx, please report it: " if bug else ""
            self._warn_once(f"{name} runs as traced, without a schedule. {report}{error}")
            return make_boxed_func(gm.forward)  # type: ignore[no-any-return]
        return _runner(graph, source, unscheduled, self._options)

    def _device(self, graph: TaskGraph) -> Device:
        """The one device of the graph's tensors, unless the user chose another."""
        types = [value.type for value in graph.values]
        used = next((t.device for t in types if isinstance(t, TensorType)), torch.device("cpu"))
        if self._virtual is not None and used.type == "cpu":
            return self._virtual
        if self._virtual is not None:
            raise _DynamoOptionError(
                f"option device='virtual' is for models on the CPU; {graph.name} is on {used}",
                first_useful_frame=None,
            )
        device = device_for(used)
        if device is None:
            raise UnsupportedError(f"{graph.name} runs on {used}, which nimble_fx does not know")
        return device

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            warnings.warn(message, NimbleWarning, stacklevel=2)
        self._warned = True


def _legal_module(program: Unscheduled, options: Options) -> tuple[TaskGraph, str]:
    """The schedule by the user's policy, and its text; the serial one if that is not legal."""
    graph = program.traced.graph
    limits = [n for n in (options.max_streams, program.device.max_streams) if n is not None]
    pipeline = passes(options.policy, min(limits, default=None))
    try:
        if options.cache_dir is not None:
            cache = Cache(Path(options.cache_dir).expanduser().absolute())
            return cache.get(program, pipeline, lambda: _emitted(graph, pipeline, options))
        return _emitted(graph, pipeline, options)
    except ScheduleError as error:
        serial = _emitted(graph, passes("serial", None), options)
        warnings.warn(
            f"the schedule of {graph.name} is not legal and is not run; one stream is used. "
            f"This is a bug in nimble_fx, please report it: {error}",
            NimbleWarning,
            stacklevel=2,
        )
        return serial


def _emitted(graph: TaskGraph, pipeline: Sequence[Pass], options: Options) -> tuple[TaskGraph, str]:
    """A schedule and its text, both proved legal unless the user asked for no proof.

    Raises:
        ScheduleError: the schedule is not legal, or the text is not that schedule.
    """
    scheduled = schedule(graph, pipeline)
    if options.verify:
        verify(scheduled, graph)
    source = emit(scheduled)
    if options.verify:
        verify_source(source, scheduled)
    return scheduled, source


def _runner(graph: TaskGraph, source: str, program: Unscheduled, options: Options) -> Boxed:
    """Loads and registers the program; freezes it where that is possible and wanted."""
    name = file_name(graph.name, source)
    path = None
    if options.dump is not None:
        path = write(Path(options.dump).expanduser().absolute(), name, source)
    file = str(path) if path else f"<nimble_fx {name}>"
    device, constants = program.device, program.traced.constants
    reason = why_not_freeze(graph, device) if options.freeze else "the option freeze is False"
    status = Status(reason=reason)
    compiled = Program(graph, source, path, file, device.name, status, constants, program.paths)
    register(compiled)
    return compiled.runner(device)


class _DynamoOptionError(ShortenTraceback, OptionError):
    """An OptionError that Dynamo hands to the user as it is."""


def _parse(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    try:
        return Options.parse(mode, options)
    except OptionError as error:
        raise _DynamoOptionError(str(error), first_useful_frame=None) from None
