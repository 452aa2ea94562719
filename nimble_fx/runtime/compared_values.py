"""Compares the results of a rewritten program with those of the original, in its first call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from nimble_fx.errors import RewriteError, UnsupportedError
from nimble_fx.ir.effects import Effects
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.names import lookup, pytree
from nimble_fx.tracing.aten_to_tasks import trace

_same = lookup("torch._dynamo.utils.same")

MIN_SCALE = 2**-12
"""Smaller values may be what rounding leaves of larger ones that cancel each other."""


def is_comparable(traced: GraphModule) -> bool:
    """Whether a graph can run more often than the user calls it, and in float64.

    It must not write to its arguments, nor call a custom operator, which may have undeclared
    effects, nor reinterpret bits as another type, which rounding changes by any amount.
    """
    if traced.graph.find_nodes(op="call_function", target=torch.ops.aten.view.dtype):
        return False
    try:
        effects = Effects.of(trace(traced).graph)
    except UnsupportedError:  # it runs as traced; the fallback has been reported
        return False
    return not (effects.written or effects.may_be_more)


def compared_once(run: Boxed, traced: GraphModule, name: str) -> Boxed:
    """A program whose first call also runs the graph that it was rewritten from.

    If numbers differ, PyTorch's rule decides (`torch._dynamo.utils.same`): the error against the
    graph in float64 may exceed the error of the graph itself only by a factor and a tolerance
    (relative to the root mean square of the values). If an operator of the graph does not take
    float64, the results are compared with those of the graph itself. Random numbers are drawn as if
    the program had run once.

    Args:
        run: the rewritten program, which writes to none of its arguments.
        traced: the graph as it was traced.
        name: the program's name, for errors.
    """
    to_compare: GraphModule | None = traced

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal to_compare
        original = to_compare
        if original is None or are_fake(args):
            return run(args)
        given, random = list(args), _RandomState(args)
        with random.preserved():
            expected = original(*given)
        results = run(args)
        if not all(map(_is_equal, expected, results)):
            with random.preserved():
                exact = _in_float64_or_as_is(original, given, expected)
            for i, values in enumerate(zip(expected, results, exact, strict=True)):
                _check(name, i, *values)
        to_compare = None  # a large graph
        return results

    return call


class _RandomState:
    """The state of PyTorch's random number generators before a call."""

    def __init__(self, args: Sequence[Any]) -> None:
        self._gpus = list({x.device for x in args if isinstance(x, Tensor) and x.is_cuda})
        self._cpu = torch.get_rng_state()
        self._states = [torch.get_device_module(gpu).get_rng_state(gpu) for gpu in self._gpus]

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Within the block, draws the call's random numbers again; restores generators after."""
        with torch.random.fork_rng(devices=self._gpus):
            torch.set_rng_state(self._cpu)
            for gpu, state in zip(self._gpus, self._states, strict=True):
                torch.get_device_module(gpu).set_rng_state(state, gpu)
            yield


def _is_equal(expected: Any, result: Any) -> bool:
    """Whether two results are equal; NaN equals NaN."""
    if not isinstance(expected, Tensor):
        return True
    is_alike = (expected.shape, expected.dtype) == (result.shape, result.dtype)
    if not is_alike or expected.layout is not torch.strided:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, result)
    one, other = _leaf_in_float64(expected), _leaf_in_float64(result)
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _in_float64_or_as_is(
    traced: GraphModule, args: Sequence[Any], expected: Sequence[Any]
) -> Sequence[Any]:
    """The graph's results in float64; in its own types if an operator does not take float64."""
    try:
        exact: Sequence[Any] = _InFloat64(traced).run(*args)
    except Exception:  # an operator's own error: it does not take float64
        return expected
    return exact


def _check(name: str, i: int, expected: Any, result: Any, exact: Any) -> None:
    if not isinstance(expected, Tensor):
        return
    if expected.shape != result.shape:
        what = f"has the shape {list(result.shape)}, not {list(expected.shape)},"
    elif _has_other_nan(expected, result, exact):
        what = "has NaN in other places"
    elif not _same(*_scaled(*_without_nan(expected, result, exact)), equal_nan=True):
        error = (result.double() - exact.double()).abs().max().item()
        what = f"is off float64 by up to {error:.3g}"
    else:
        return
    raise RewriteError(
        f"output {i} of {name} {what} after its kernels were replaced. This is a bug in nimble_fx, "
        "please report it; fold_weights=False and kernels='aten' keep PyTorch's"
    )


def _has_other_nan(expected: Tensor, result: Tensor, exact: Tensor) -> bool:
    """Whether a result is NaN where the graph's are not, or the reverse.

    Where the graph's results in its own types and in float64 differ, either is right.
    """
    if expected.layout is not torch.strided:
        return False
    one, ours, other = expected.isnan(), result.isnan(), exact.isnan()
    return bool(((one & other & ~ours) | (ours & ~one & ~other)).any())


def _without_nan(*values: Tensor) -> Sequence[Tensor]:
    """The values with 0 where any is NaN: PyTorch's rule accepts all others if one is."""
    if any(value.layout is not torch.strided for value in values):
        return values
    is_nan = torch.stack([value.isnan() for value in values]).any(0)
    return [value.masked_fill(is_nan, 0) for value in values] if is_nan.any() else values


def _scaled(expected: Tensor, result: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors divided by the root mean square of the exact values, or by `MIN_SCALE`.

    PyTorch's tolerance is for values of about 1.
    """
    if not ((exact.is_floating_point() or exact.is_complex()) and exact.numel()):
        return expected, result, exact
    rms = exact.abs().square().mean().sqrt().item()
    scale = max(rms, MIN_SCALE) if 0 < rms < torch.inf else 1
    return expected / scale, result / scale, exact / scale


class _InFloat64(Interpreter):
    """Runs a graph with float64 and complex128 in place of each narrower type."""

    def run_node(self, node: torch.fx.Node) -> Any:
        return _in_float64(super().run_node(node))

    def fetch_args_kwargs_from_env(
        self, node: torch.fx.Node
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().fetch_args_kwargs_from_env(node)
        return _in_float64(args), _in_float64(kwargs)


def _in_float64(values: Any) -> Any:
    return pytree.tree_map(_leaf_in_float64, values)


def _leaf_in_float64(value: Any) -> Any:
    wide = _wide(value.dtype if isinstance(value, Tensor) else value)
    if wide is None:
        return value
    return value.to(wide) if isinstance(value, Tensor) else wide


def _wide(dtype: object) -> torch.dtype | None:
    """float64 for a narrower float, complex128 for a complex type; None for other types."""
    if not isinstance(dtype, torch.dtype):
        return None
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else None
