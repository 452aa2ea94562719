"""`nimble_fx.plan(model, example_inputs)`: schedules a model for a GPU that may be elsewhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.devices.cuda import Cuda
from nimble_fx.devices.specs import GPUS, Device, find_device
from nimble_fx.errors import NimbleError, OptionError, UnsupportedError
from nimble_fx.frontend.models.as_callable import as_callable
from nimble_fx.frontend.models.example_run import check_call, check_training, run_example
from nimble_fx.frontend.models.meta_copy import ToMeta, copy_with
from nimble_fx.frontend.models.model_function import (
    Arguments,
    name_of,
    unique_function,
)
from nimble_fx.frontend.models.own_source import OwnSource
from nimble_fx.frontend.models.preserve_state import restored_containers, restored_generators
from nimble_fx.frontend.models.reachable_state import reachable_state
from nimble_fx.frontend.models.restored_values import restored_values
from nimble_fx.frontend.planning.planned_device import META, PlannedDevice
from nimble_fx.ir.display import plural
from nimble_fx.options import Options
from nimble_fx.program import Program
from nimble_fx.runtime.capture.checks import about_task
from nimble_fx.torch_internals.dynamo.caches import drop_compiled
from nimble_fx.torch_internals.dynamo.names import BackendCompilerFailed
from nimble_fx.torch_internals.names import pytree

_DEPEND_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@overload
def plan(
    model: object,
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    device: str | torch.device | Device = "cuda",
    training: Literal[False] = False,
    **options: Any,
) -> Program: ...


@overload
def plan(
    model: object,
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    device: str | torch.device | Device = "cuda",
    training: Literal[True],
    **options: Any,
) -> tuple[Program, Program]: ...


def plan(
    model: object,
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    device: str | torch.device | Device = "cuda",
    training: bool = False,
    **options: Any,
) -> Program | tuple[Program, Program]:
    """Schedules the model for a device, which this machine need not have; returns its program.

    The model is traced on tensors without data: it does not change, and neither it nor the inputs
    need data. The only kernels that run compute constants of at most 1 MiB each, and nothing is
    captured. With `policy="auto"`, the schedule is the fastest by simulation; `program.candidates`
    lists all.

    Args:
        model: as for `nimble_fx.compile`, on any device, also "meta". A function must take all
            tensors as arguments.
        example_inputs, example_kwargs: as for `nimble_fx.compile`, on any device, or fake tensors.
        device: the device to plan for, by a name in `nimble_fx.devices.specs.DEVICES`, such as
            "h100", or as a description, `nimble_fx.Device(sms=..., tflops=..., gbps=...)`; or this
            machine's "cuda", "cuda:1" or a `torch.device`, which mean an H100 if the machine has no
            such device.
        training: True for the forward and backward of training.
        **options: the options of `torch.compile(options={...})` except `device` and `seed`, and
            `cost_dir`, because nothing is measured. `verify="values"` has the effect of True,
            because nothing is computed; `cache_dir` has an effect only if this machine has the
            device.

    Returns:
        The program for inference, or in training those of the forward and the backward.

    Raises:
        OptionError: before any work, if an option is not valid; later, if the model does not take
            the example inputs.
        PassError: a policy of your own raised an exception.
        UnsupportedError: the model is not one graph that can be scheduled; the message says where.
            It is traced as by `torch.compile(fullgraph=True)`.

    PyTorch selects some operators by device, for example those of attention. A plan has the
    operators of the "meta" device, which are PyTorch's general ones, even if the GPU has a
    specialized kernel. With `kernels="inductor"` Inductor compiles for a GPU of this machine,
    whatever device the plan is for; if PyTorch finds none, the program has PyTorch's kernels, which
    is a fallback (see `on_fallback`).
    """
    check_training(training)
    runtime, specs = _runtime_and_specs(device)
    parsed = _parsed(options, is_here=runtime.hardware is not None)
    arguments, bare = Arguments.parse(example_inputs, example_kwargs), ToMeta()
    function = _on_meta(as_callable(model, arguments), bare)
    planner = _Planner(parsed, runtime, specs, OwnSource(function))
    _trace(function, planner, _arguments_on_meta(arguments, bare), training)
    match planner.programs:
        case [program] if not training:
            return program
        case [forward, backward] if training:
            return forward, backward
    what = "its backward" if planner.programs else "it"
    raise UnsupportedError(f"{name_of(function)} has nothing to schedule: {what} launches nothing")


def _parsed(options: dict[str, Any], is_here: bool) -> Options:
    """The options of a plan, without those that have no effect on it.

    Args:
        options: by name.
        is_here: whether this machine has the device; the cache refuses files for any other.
    """
    if options.get("cost_dir") is not None:
        raise OptionError(
            f"cost_dir={options['cost_dir']!r} has no effect on a plan, which measures nothing: on "
            "a machine with the device, pass it to torch.compile or nimble_fx.compile"
        )
    parsed = Options.parse(None, options, keywords=("device", "example_kwargs", "training"))
    verify = True if parsed.verify == "values" else parsed.verify
    cache_dir = parsed.cache_dir if is_here else None
    return replace(parsed, verify=verify, cache_dir=cache_dir)


def _runtime_and_specs(device: str | torch.device | Device) -> tuple[Cuda, Device]:
    """The device to plan for, and its figures.

    Raises:
        OptionError: there is no such device, or it has no CUDA graphs.
    """
    here = _torch_device(device)
    if here is not None and here.type == "cuda":
        target = Cuda.get(torch.device("cuda", here.index or 0))
        return target, target.specs
    if isinstance(device, Device) or (isinstance(device, str) and here is None):
        return Cuda.get(torch.device("cuda", 0)), find_device(device, GPUS)
    raise OptionError(
        f"option device={device!r} is not valid; it takes 'cuda', 'cuda:N' or such a "
        "torch.device, the name of a GPU such as 'h100', or a nimble_fx.Device"
    )


def _torch_device(device: str | torch.device | Device) -> torch.device | None:
    try:
        return torch.device(device) if isinstance(device, str | torch.device) else None
    except RuntimeError:  # no name of PyTorch's
        return None


def _on_meta(function: Callable[..., Any], bare: ToMeta) -> Callable[..., Any]:
    """A copy on the "meta" device if the function is a module; else the function itself."""
    if not isinstance(function, nn.Module):
        return function
    module = copy_with(function, bare)
    for part in module.modules():
        if isinstance(part, GraphModule):
            _move_factories(part)
    return module


def _arguments_on_meta(arguments: Arguments, bare: ToMeta) -> Arguments:
    """The arguments with tensors, and copies of modules, on the "meta" device."""
    args, kwargs = pytree.tree_map_only(
        nn.Module, lambda module: _on_meta(module, bare), (arguments.args, arguments.kwargs)
    )
    return Arguments(args, kwargs).with_tensors(bare)


def _move_factories(gm: GraphModule) -> None:
    """Replaces each device in an exported graph, an argument of tensor factories, by "meta"."""
    for node in gm.graph.nodes:
        node.args, node.kwargs = pytree.tree_map_only(
            torch.device, lambda _: META, (node.args, node.kwargs)
        )
    gm.recompile()


def _trace(
    function: Callable[..., Any], planner: "_Planner", arguments: Arguments, training: bool
) -> None:
    unique, changed = unique_function(function), reachable_state(function, arguments.others)
    compiled = torch.compile(unique, backend=planner, fullgraph=True)
    # To copy the parameters that a function takes from outside could take too much memory.
    others = [each for each in changed.tensors if not isinstance(each, nn.Parameter)]
    generators = restored_generators(changed.generators, changed.tensors)
    with restored_values(others), restored_containers(changed.containers), generators:
        try:
            run_example(compiled, arguments, training)
        except NimbleError:
            raise
        except (RuntimeError, AssertionError) as error:  # which PyTorch raises
            cause = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
            is_pytorchs = isinstance(cause, (RuntimeError, AssertionError))
            if isinstance(cause, NimbleError) or not is_pytorchs:
                raise cause from None
            _check_sizes(name_of(function), planner.programs)
            check_call(function, arguments)
            raise UnsupportedError(
                f"{name_of(function)} cannot be planned: PyTorch cannot trace it as one graph on "
                "the 'meta' device, to which a plan moves parameters and inputs, but no tensors "
                "that the model makes on another device or that objects other than modules hold. "
                f"{_left_behind(function)}{cause}"
            ) from cause
        finally:
            drop_compiled(unique.__code__, planner)


def _check_sizes(name: str, programs: Iterable[Program]) -> None:
    """Raises UnsupportedError if the size of a result depends on data, which a plan lacks."""
    for task in (task for program in programs for task in program.graph.tasks):
        if not _DEPEND_ON_DATA.isdisjoint(getattr(task.target, "tags", ())):
            what = "the size or value of its result depends on data, which a plan does not have"
            why = about_task(task, what)
            raise UnsupportedError(f"{name} cannot be planned: {why}", task.name, task.source)


def _left_behind(function: Callable[..., Any]) -> str:
    """A sentence about tensors that a function uses without taking them; "" if there are none."""
    tensors = [] if isinstance(function, nn.Module) else reachable_state(function).tensors
    n_elsewhere = sum(tensor.dim() > 0 and not tensor.is_meta for tensor in tensors)
    if not n_elsewhere:
        return ""
    return (
        f"It does not move those that a function takes from outside: {name_of(function)} uses "
        f"{plural(n_elsewhere, 'tensor')} of its closure or globals. Make it a torch.nn.Module "
        "that has them, or pass them as arguments. "
    )


class _Planner:
    """A backend that lists the programs that it schedules, and runs the ATen graphs on "meta"."""

    def __init__(
        self, options: Options, runtime: Cuda, specs: Device, own_source: OwnSource
    ) -> None:
        self.__name__ = "nimble"  # its name in PyTorch's logs
        self.programs: list[Program] = []
        self._options, self._own_source = options, own_source
        self._target = PlannedDevice(options, runtime, specs, self.programs.append)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        compiler = Compiler(gm, self._options, self._target, self._own_source)
        return lower(gm, example_inputs, compiler)
