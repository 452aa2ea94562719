"""Registers kernels as operators with PyTorch's dispatcher, so that a graph can call them.

Operators stay registered for the life of the process, because the compiled code stays loaded too;
each kernel is registered once.
"""

import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch

from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import KERNELS

MAX_PARAMETERS = 64
"""The maximum number of parameters that PyTorch allows an operator."""
MAX_NAME = 32
"""The maximum length of a kernel's name; the rest is cut."""

_lock = threading.Lock()
_operators: dict[str, OpOverload] = {}
"""By the digest of all that distinguishes kernels."""
_sources: dict[str, str] = {}
"""By names of operators."""
_library: Any = torch.library.Library(KERNELS, "FRAGMENT")  # type: ignore[no-untyped-call]


def registered(
    name: str,
    identity: object,
    schema: str,
    launch: Callable[..., Any],
    fake: Callable[..., Any],
    source: str,
) -> OpOverload:
    """The operator of a kernel; registers it if necessary.

    Args:
        name: the kernel's name, such as "cpp_fused_relu_0".
        identity: has the same `repr` only for the same kernel.
        schema: the operator's parameters and results, as in "(Tensor x) -> Tensor".
        launch: launches the kernel on the current stream.
        fake: returns what `launch` does, for fake tensors.
        source: the kernel's text.
    """
    digest = sha256(repr(identity).encode()).hexdigest()
    with _lock:
        if digest not in _operators:
            full = _unused_name(short_name(name), digest)
            _library.define(full + schema)
            _library.impl(full, launch, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{KERNELS}::{full}", fake, lib=_library)
            _operators[digest] = getattr(getattr(torch.ops, KERNELS), full).default
            _sources[full] = source
    return _operators[digest]


def _unused_name(kernel: str, digest: str) -> str:
    """A name with as much of the digest as makes it unique."""
    names = (f"{kernel}_{digest[:n]}" for n in range(8, len(digest) + 1))
    return next(name for name in names if name not in _sources)


def short_name(kernel: str) -> str:
    """A kernel's name, with the list of fused operators cut to a readable length."""
    fused, _, number = kernel.rpartition("_")
    if len(kernel) <= MAX_NAME or not number.isdecimal():
        return kernel[:MAX_NAME]
    return f"{fused[:MAX_NAME].rstrip('_')}_{number}"


def kernel_source(name: str) -> str | None:
    """The text of a kernel, by its operator's name; None if there is no such kernel."""
    return _sources.get(name)
