"""Runs a traced graph in float64, without rounding errors or with random ones.

Source: D. S. Parker, Monte Carlo Arithmetic (UCLA CSD-970002, 1997): results that change when
random rounding errors are added to each operation are not decided by the program.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from nimble_fx.torch_internals.names import pytree

MAX_EPSILONS = 16
"""The standard deviation of the random error of a value, in epsilons of its type, at most."""


def in_float64(
    gm: GraphModule, args: Sequence[Any], error_seed: int | None = None
) -> Sequence[Any] | None:
    """The graph's results with float64 and complex128 in place of each narrower type.

    Returns None if an operator of the graph does not take these.

    Args:
        gm: a graph with fake tensors in `meta["val"]`, whose types decide how large errors are.
        args: its arguments, which have no errors.
        error_seed: not None: each value has a random error, as kernels in the graph's types have;
            the generators of the program's own random numbers are not used for these.
    """
    run = _InFloat64(gm) if error_seed is None else _WithErrors(gm, error_seed)
    try:
        results: Sequence[Any] = run.run(*args)
    except Exception:  # an operator's own error
        return None
    return results


def wide(value: Any) -> Any:
    """A tensor, or a type, in float64 or complex128 if it is narrower; another value as it is."""
    dtype = _wide(value.dtype if isinstance(value, Tensor) else value)
    if dtype is None:
        return value
    return value.to(dtype) if isinstance(value, Tensor) else dtype


def numeric(value: Tensor) -> Tensor:
    """A tensor in float64, complex128 or int64."""
    number: Tensor = wide(value)
    return number if number.is_floating_point() or number.is_complex() else number.to(torch.int64)


class _InFloat64(Interpreter):
    def run_node(self, n: Node) -> Any:
        return pytree.tree_map(wide, super().run_node(n))

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return pytree.tree_map(wide, args), pytree.tree_map(wide, kwargs)


class _WithErrors(_InFloat64):
    def __init__(self, gm: GraphModule, seed: int) -> None:
        super().__init__(gm)
        self._errors = torch.Generator("cpu").manual_seed(seed)

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op != "call_function" or "val" not in n.meta:
            return result
        adds_up = torch.Tag.pointwise not in getattr(n.target, "tags", ())
        return pytree.tree_map(partial(self._with_error, adds_up), result, n.meta["val"])

    def _with_error(self, adds_up: bool, value: Any, traced: Any) -> Any:
        """A value with an error where a kernel in the traced type rounds.

        It does not round whole numbers that the type has, nor other numbers that it has unless it
        adds up several to get there.
        """
        if _wide(getattr(traced, "dtype", None)) is None or value.layout is not torch.strided:
            return value
        error = torch.randn(value.shape, generator=self._errors, dtype=torch.float64, device="cpu")
        other = value * (1 + _error_size(traced.dtype) * error.to(value.device))
        is_exact = value == wide(value.to(traced.dtype))
        if adds_up and not value.is_complex():
            is_exact &= value == value.round()
        return value.where(is_exact, other)


def _error_size(dtype: torch.dtype) -> float:
    """The standard deviation of the relative error: one epsilon or two in types of 16 bits."""
    eps: float = torch.finfo(dtype).eps
    return eps * min(MAX_EPSILONS, 1 / 16 / math.sqrt(eps))


def _wide(dtype: object) -> torch.dtype | None:
    """float64 for a narrower float, complex128 for a complex type; None for other types."""
    if not isinstance(dtype, torch.dtype):
        return None
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else None
