"""Values for all of ATen: `install()` overrides the CUDA kernels of a process.

An override calls the real kernel first, so that checks, allocations, launches, capture and
synchronization are PyTorch's own; on the stand-in the launches compute nothing. Then it enqueues on
the current stream a host function that runs the CPU kernel on the same memory. In a capture that is
a node of the graph, so that each replay computes again. All threads are affected, and no mode is
active. Of several kernels for the same, PyTorch's own run: not cuDNN's, nor fused attention.
"""

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.cuda_runtime.aliases import alias, on_cpu, tensors
from tests.cuda_runtime.below_dispatch import (
    BelowDispatch,
    NumbersAsTensors,
    WithoutDynamo,
    dispatch_keys,
)
from tests.cuda_runtime.host_functions import enqueue
from tests.cuda_runtime.library import last_philox
from tests.cuda_runtime.randomness import seeded
from tests.cuda_runtime.written_operators import WRITTEN

LARGE = 2e9
"""A product of more multiplications is not computed; it takes the time of so many a second:"""
LARGE_PER_SECOND = 1e13

Kernel = Callable[..., Any]

_LEFT_ALONE = {
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "set_"),
    *("detach", "lift_fresh", "is_pinned", "_pin_memory", "record_stream", "_local_scalar_dense"),
    *("_has_compatible_shallow_copy_type", "_unsafe_view", "_cudnn_init_dropout_state"),
    *("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "view", "_reshape_alias", "as_strided"),
    *("_efficientzerotensor", "_convert_indices_from_csr_to_coo", "unfold", "_resize_output_"),
    "is_set_to",
}
"""Operators that compute nothing."""

_THE_HOST_WAITS = {
    *("nonzero", "masked_select", "_unique2", "_unique", "unique_dim", "unique_consecutive"),
    *("repeat_interleave", "equal"),
}
"""Operators whose result, or its size, the host needs: it waits for the device."""

_ON_TENSORS = {
    "aten::pow.Scalar": torch.ops.aten.pow.Tensor_Tensor,
    "aten::pow.Scalar_out": torch.ops.aten.pow.Tensor_Tensor_out,
    "aten::isin.Scalar_Tensor": torch.ops.aten.isin.Tensor_Tensor,
    "aten::isin.Scalar_Tensor_out": torch.ops.aten.isin.Tensor_Tensor_out,
}
"""Operators whose kernels call another with a number that lies on the device as a tensor. PyTorch
makes a Python number of it on the way to an override, and takes it to be on the CPU."""

_CPU_KEYS = dispatch_keys("CPU")
_local = threading.local()
_libraries: list[torch.library.Library] = []


def install() -> int:
    """Overrides the kernels, once; returns how many."""
    if _libraries:
        return 0
    _use_own_kernels()
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
    made = {op: _override_of(op) for op in _overridden()}
    copy: Any = torch.ops.aten.copy_.default  # has one kernel for all devices, not CUDA's own
    made[copy] = _computed_copy(copy, _real_kernel(copy))
    for op, kernel in made.items():
        name = op.name().removeprefix("aten::")
        library.impl(name, _untraced(kernel), "CUDA", with_keyset=True, allow_override=True)
    return len(made)


def _use_own_kernels() -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def _overridden() -> list[Any]:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or base in _LEFT_ALONE or not has_kernel(name, "CUDA"):
            continue
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if op is not None and not _is_view(op._schema) and _has_value(op._schema):
            found.append(op)
    return found


def _is_view(schema: Any) -> bool:
    infos = [value.alias_info for value in schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _has_value(schema: Any) -> bool:
    returns_tensor = any("Tensor" in str(value.type) for value in schema.returns)
    return returns_tensor or bool(_written(schema)) or _base(schema) in _THE_HOST_WAITS


def _written(schema: Any) -> list[tuple[int, str]]:
    arguments = enumerate(schema.arguments)
    return [(i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write]


def _base(schema: Any) -> str:
    return str(schema.name).removeprefix("aten::")


def _override_of(op: Any) -> Kernel:
    make = _waited if _base(op._schema) in _THE_HOST_WAITS else _computed
    return make(op, _real_kernel(op))


def _real_kernel(op: Any) -> Kernel:
    if op.name() in _ON_TENSORS:
        return _with_tensor_for_number(_ON_TENSORS[op.name()])
    kernel = torch.library.get_kernel(op, "CUDA")

    def real(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with NumbersAsTensors():
            return kernel.call_boxed(keyset, *args, **kwargs)

    return real


def _with_tensor_for_number(op: Any) -> Kernel:
    """Calls the operator with a tensor for its first argument, a number."""

    def real(_keyset: Any, number: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.result_type(number, tensor)
        first = torch.scalar_tensor(number, dtype=dtype, device=tensor.device)
        return op(first, tensor, *args, **kwargs)

    return real


def _cpu_kernel(op: Any) -> Kernel:
    """The CPU kernel of an operator, looked up when it is first needed."""
    known = list[Any]()

    def compute(*args: Any, **kwargs: Any) -> Any:
        if not known:
            known.append(torch.library.get_kernel(op, "CPU"))
        with NumbersAsTensors():
            return known[0].call_boxed(_CPU_KEYS, *args, **kwargs)

    return compute


def _untraced(kernel: Kernel) -> Kernel:
    """The kernel, neither it nor what it calls traced by Dynamo."""

    def untraced(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with WithoutDynamo():
            return kernel(keyset, *args, **kwargs)

    torch._dynamo.eval_frame.skip_code(untraced.__code__)
    return untraced


def _outermost(real: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Calls a real kernel; the operators that it calls itself are left to their real kernels."""
    _local.is_inside = True
    try:
        return real(*args, **kwargs)
    finally:
        _local.is_inside = False


def _computed(op: Any, real: Kernel) -> Kernel:
    """The real kernel, and behind it a host function that computes its results."""
    schema = op._schema
    compute = WRITTEN.get(_base(schema)) or _cpu_kernel(op)
    is_random = torch.Tag.nondeterministic_seeded in op.tags
    label = op.name()

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_local, "is_inside", False):
            return real(keyset, *args, **kwargs)
        n_drawn = last_philox()[0] if is_random else 0
        out = _outermost(real, keyset, *args, **kwargs)
        with BelowDispatch():
            function = _host_function(schema, compute, args, kwargs, out)
        if function is None:
            return out
        if is_random:
            n, state = last_philox()
            function = seeded(function, state) if n != n_drawn else function
        enqueue(label, function, _device((args, kwargs, out)))
        return out

    return call


def _device(values: Any) -> int | None:
    return next((tensor.get_device() for tensor in tensors(values) if tensor.is_cuda), None)


def _host_function(
    schema: Any, compute: Kernel, args: Any, kwargs: Any, out: Any
) -> Callable[[], object] | None:
    """A function that computes results into the memory of those that a kernel returned."""
    where = _written(schema)
    given = [args[i] if i < len(args) else kwargs.get(name) for i, name in where]
    written = {id(tensor) for tensor in tensors(given)}
    cpu_args = on_cpu(args, written)
    cpu_kwargs = {name: on_cpu(value, written) for name, value in kwargs.items()}
    fresh = _fresh_results(schema, out)
    if not where and not any(t.numel() for targets in fresh.values() for t in targets):
        return None

    def run() -> None:
        made = _as_list(schema, compute(*cpu_args, **cpu_kwargs))
        for i, targets in fresh.items():
            if i < len(made) and made[i] is not None:
                for target, value in zip(targets, tensors(made[i]), strict=True):
                    _fill(target, value)

    return _unless_large(_base(schema), cpu_args, run)


def _fresh_results(schema: Any, out: Any) -> dict[int, list[Tensor]]:
    """The results that are no arguments, by position, as CPU tensors."""
    infos = [value.alias_info for value in schema.returns]
    is_written = [info is not None and info.is_write for info in infos]
    results = enumerate(_as_list(schema, out))
    return {
        i: [alias(tensor) for tensor in tensors(value)]
        for i, value in results
        if value is not None and not (i < len(is_written) and is_written[i])
    }


def _as_list(schema: Any, out: Any) -> list[Any]:
    """The results of an operator that has one, or several."""
    return list(out) if isinstance(out, (tuple, list)) and len(schema.returns) > 1 else [out]


def _fill(target: Tensor, value: Tensor) -> None:
    """Copies a result. The CPU's may be empty where it is not needed."""
    if value.numel() == target.numel():
        target.copy_(value)


def _unless_large(
    name: str, args: list[Any], function: Callable[[], object]
) -> Callable[[], object]:
    """The function, or for a large product one that takes time instead."""
    if name not in ("mm", "addmm", "bmm"):
        return function
    left, right = args[1:3] if name == "addmm" else args[:2]
    n = 2.0 * left.numel() * right.shape[-1]
    return function if n < LARGE else lambda: time.sleep(n / LARGE_PER_SECOND)


def _waited(op: Any, _real: Kernel) -> Kernel:
    """What the host waits for: raises what the real kernel would, and gives the CPU's result."""
    compute = _cpu_kernel(op)

    def call(_keyset: Any, *args: Any, **kwargs: Any) -> Any:
        given = next(tensor for tensor in tensors((args, kwargs)) if tensor.is_cuda)
        given.new_zeros(()).item()  # an error in a capture, and where waiting is one
        with BelowDispatch():
            cpu_kwargs = {name: on_cpu(value, set()) for name, value in kwargs.items()}
            made = compute(*on_cpu(args, set()), **cpu_kwargs)
        if isinstance(made, bool):
            return made
        if isinstance(made, Tensor):
            return made.to(given.device)
        return tuple(tensor.to(given.device) for tensor in made)

    return call


def _computed_copy(op: Any, real: Kernel) -> Kernel:
    """A copy on the device is computed; one to or from the host is a copy of the runtime's."""
    computed = _computed(op, real)

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        is_on_device = args[0].is_cuda and args[1].is_cuda
        return (computed if is_on_device else real)(keyset, *args, **kwargs)

    return call
