"""Compares the results of a rewritten program with those of the original, in its first call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.errors import RewriteError, UnsupportedError
from nimble_fx.ir.effects import Effects
from nimble_fx.runtime.reference_runs import in_float64, in_float64_with_errors, wide
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.names import lookup
from nimble_fx.tracing.aten_to_tasks import trace

_same = lookup("torch._dynamo.utils.same")

N_RUNS = 16
"""How often the graph runs with random rounding errors, if a result differs."""

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
    (relative to the root mean square of the values), or that of the graph with random rounding
    errors, which decide ties. If an operator of the graph does not take float64, the results are
    compared with those of the graph itself. Random numbers are drawn as if the program had run
    once.

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
            _Comparison(original, given, expected, random).check(results, name)
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
    one, other = wide(expected), wide(result)
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


class _Comparison:
    """What the results of a call may be."""

    def __init__(
        self, graph: GraphModule, args: Sequence[Any], expected: Sequence[Any], random: _RandomState
    ) -> None:
        self._graph, self._args, self._expected, self._random = graph, args, expected, random
        with random.preserved():
            self._exact = in_float64(graph, args) or expected

    def check(self, results: Sequence[Any], name: str) -> None:
        """Checks the program's results.

        Raises:
            RewriteError: a result is none that the graph has with any rounding errors.
        """
        found = map(_difference, self._expected, results, self._exact)
        different = {i: difference for i, difference in enumerate(found) if difference}
        others = self._with_other_errors() if different else []
        for i, difference in different.items():
            known = [self._expected[i], self._exact[i], *(other[i] for other in others)]
            if not _is_possible(results[i], self._exact[i], known):
                raise RewriteError(
                    f"output {i} of {name} {difference} after its kernels were replaced. This is "
                    "a bug in nimble_fx, please report it; fold_weights=False and kernels='aten' "
                    "keep PyTorch's"
                )

    def _with_other_errors(self) -> Sequence[Sequence[Any]]:
        """The graph's results with random rounding errors, of several runs."""
        found = list[Sequence[Any]]()
        for seed in range(N_RUNS):
            with self._random.preserved():
                results = in_float64_with_errors(self._graph, self._args, seed)
            if results is not None:
                found.append(results)
        return found


def _is_possible(result: Tensor, exact: Tensor, known: Sequence[Tensor]) -> bool:
    """Whether a result is as some rounding errors may make it.

    An element of an integer output may be anything where the known results differ; an output of
    another type may have the errors of any of them.
    """
    alike = [other.to(result.dtype) for other in known if other.shape == result.shape]
    if exact.shape != result.shape:
        return bool(alike)
    if result.is_floating_point() or result.is_complex():
        return any(_difference(other, result, exact) is None for other in alike)
    is_decided = torch.stack([alike[0] == other for other in alike]).all(0)
    return not ((result != alike[0]) & is_decided).any()


def _difference(expected: Any, result: Any, exact: Any) -> str | None:
    """How a result differs from the graph's; None if it is as accurate."""
    if not isinstance(expected, Tensor):
        return None
    if not expected.shape == result.shape == exact.shape:
        return f"has the shape {list(result.shape)}, not {list(expected.shape)},"
    if _has_other_nan(expected, result, exact):
        return "has NaN in other places"
    scaled = _scaled(*_without_nan(expected, result, exact))
    if not _same(*scaled, equal_nan=True, log_error=lambda *_, **__: None):
        error = (result.double() - exact.double()).abs().max().item()
        return f"is off float64 by up to {error:.3g}"
    return None


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
