"""Compiling with Inductor's kernels."""

from collections.abc import Callable
from typing import Any

import torch

import nimble_fx
from nimble_fx.torch_internals.operators import KERNELS


def compiled(
    function: Callable[..., Any], dynamic: bool | None = None, **options: Any
) -> Callable[..., Any]:
    """A function compiled with Inductor's kernels, on several streams; a fallback is an error."""
    torch.compiler.reset()
    chosen = {"kernels": "inductor", "policy": "nimble", "on_fallback": "error", **options}
    return torch.compile(function, backend="nimble", dynamic=dynamic, options=chosen)


def kernels_of(program: nimble_fx.Program) -> list[str]:
    """The names of a program's tasks that are kernels of Inductor."""
    tasks = program.graph.tasks
    return [t.name for t in tasks if getattr(t.target, "namespace", "") == KERNELS]
