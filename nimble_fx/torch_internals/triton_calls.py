"""Launches of Triton kernels by the model, as AOTAutograd makes them functional.

It wraps a launch in a higher-order operator that copies the tensors that the kernel writes to (by
PyTorch's analysis of the kernel's code), launches the kernel on the copies, and returns them by the
kernel's parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from nimble_fx.torch_internals.names import lookup

_MODULE = "torch._higher_order_ops.triton_kernel_wrap"
TRITON_WRAPPER = lookup(f"{_MODULE}.triton_kernel_wrapper_functional")
"""The higher-order operator."""

_LITERALS = (int, float, str, bool, type(None), torch.dtype)

_launch = lookup(f"{_MODULE}.triton_kernel_wrapper_mutation")
_table = lookup(f"{_MODULE}.kernel_side_table")


@dataclass(frozen=True)
class WrappedLaunch:
    """A wrapped launch of a kernel.

    Attributes:
        kernel: a function of `triton.jit`, or an autotuner of one.
        constants: arguments that are no nodes, by the kernel's parameters.
        descriptors: how some tensors are passed, by the kernel's parameters.
        grid: the numbers of programs, one triple for each configuration of the autotuner.
        arguments: the other arguments by the kernel's parameters: nodes and literals.
        written: the parameters of tensors that the kernel writes to.
    """

    kernel: Any
    constants: Mapping[str, Any]
    descriptors: Mapping[str, Any]
    grid: Sequence[Any]
    arguments: Mapping[str, Any]
    written: Sequence[str]

    @property
    def name(self) -> str:
        """The name of the kernel's function, if an operator may have it."""
        function = self.kernel
        while hasattr(function, "fn"):
            function = function.fn
        name = str(function.__name__)
        return name if name.isascii() else "kernel"  # which Triton will refuse, with its own words

    @property
    def source(self) -> str:
        """The kernel's text."""
        function = self.kernel
        while not hasattr(function, "src"):
            function = function.fn
        return str(function.src)


def identity_of(value: Any) -> str:
    """A text that no other kernel or constant has while this one lives.

    It is the same for what has the same effect, in another process too, where that is known: for
    numbers, Triton's types, and kernels with the same text, of which Dynamo makes new objects in
    each compile.
    """
    if type(value) in _LITERALS:
        return repr(value)
    if type(value) in (list, tuple):
        return f"[{', '.join(map(identity_of, value))}]"
    if type(value).__module__.startswith("triton.language"):
        return f"{type(value).__name__} {value!r}"
    if isinstance(getattr(value, "cache_key", None), str):
        values = [(name, repr(each)) for (name, _), (each, _) in value.used_global_vals.items()]
        return f"kernel {value.cache_key} {values}"
    if hasattr(value, "configs") and not _calls_functions(value):
        configurations = [sorted(each.all_kwargs().items()) for each in value.configs]
        tuned = configurations, value.keys, value.reset_to_zero, value.restore_value
        return f"tuned {tuned!r} {identity_of(value.fn)}"
    return f"{type(value).__name__} {id(value)}"


def _calls_functions(tuner: Any) -> bool:
    """Whether an autotuner calls functions of the user's, which cannot be compared."""
    hooks = tuner.user_defined_pre_hook, tuner.user_defined_post_hook
    prunes = tuner.perf_model, tuner.early_config_prune
    return any((*hooks, *prunes, *(each.pre_hook for each in tuner.configs)))


def wrapped_launch(node: Node) -> WrappedLaunch:
    """The launch that a node wraps.

    Args:
        node: a call of `TRITON_WRAPPER`.
    """
    kwargs: Any = node.kwargs
    return WrappedLaunch(
        kernel=_table.get_kernel(kwargs["kernel_idx"]),
        constants=_table.get_constant_args(kwargs["constant_args_idx"]),
        descriptors=dict(kwargs["tma_descriptor_metadata"]),
        grid=list(kwargs["grid"]),
        arguments=dict(kwargs["kwargs"]),
        written=list(kwargs["tensors_to_clone"]),
    )


def launcher(launch: WrappedLaunch) -> Callable[[Sequence[Any], Mapping[str, Any]], None]:
    """A function that launches a kernel on the current stream, with another grid and arguments.

    It outlives `torch.compiler.reset()`, which empties the table from which PyTorch takes kernels.
    """
    constants = dict(launch.constants)
    index = -1

    def run(grid: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        nonlocal index
        if _table.constant_args.get(index) is not constants:
            index = _table.add_constant_args(constants)
        _launch(
            kernel_idx=_table.add_kernel(launch.kernel),
            constant_args_idx=index,
            grid=grid,
            tma_descriptor_metadata=launch.descriptors,
            kwargs=arguments,
        )

    return run
