"""Compares the results of a rewritten program with those of the original, in its first call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from nimble_fx.errors import RewriteError, UnsupportedError
from nimble_fx.ir.effects import Effects
from nimble_fx.runtime.reference_runs import in_float64
from nimble_fx.runtime.result_difference import difference, is_equal
from nimble_fx.runtime.rounding_range import RoundingRange
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.leaves import devices_of
from nimble_fx.torch_internals.operators import only_allocates
from nimble_fx.tracing.aten_to_tasks import trace

N_RUNS = 16
"""How often the graph runs with random rounding errors, if a result differs."""


def is_comparable(traced: GraphModule) -> bool:
    """Whether a graph can run more often than the user calls it, and in float64.

    It must not write to its arguments, nor call a custom operator, which may have undeclared
    effects, nor reinterpret bits as another type, which rounding changes by any amount, nor
    allocate memory as it is (`torch.empty`), which it may return.
    """
    called = {node.target for node in traced.graph.nodes if node.op == "call_function"}
    if torch.ops.aten.view.dtype in called or any(map(only_allocates, called)):
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
    (relative to the root mean square of the values). Elements that differ between runs of the graph
    with random rounding errors, as ties do, are not compared. If an operator of the graph does not
    take float64, the results are compared with those of the graph itself. Random numbers are drawn
    as if the program had run once.

    Args:
        run: the rewritten program, which writes to none of its arguments.
        traced: the graph as it was traced.
        name: the program's name, for errors.
    """
    to_compare: GraphModule | None = traced
    gpus = [device for device in devices_of(traced.graph) if device.type != "cpu"]

    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal to_compare
        original = to_compare
        if original is None or are_fake(args):
            return run(args)
        given, random = list(args), _RandomState(gpus)
        with random.preserved():
            expected = original(*given)
        results = run(args)
        if not all(map(is_equal, expected, results)):
            _Comparison(original, given, expected, random).check(results, name)
        to_compare = None  # a large graph
        return results

    return call


class _RandomState:
    """The state of PyTorch's random number generators before a call."""

    def __init__(self, gpus: Sequence[torch.device]) -> None:
        self._gpus = gpus
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
            RewriteError: rounding cannot make a result what it is.
        """
        found = map(difference, self._expected, results, self._exact)
        different = {i: what for i, what in enumerate(found) if what}
        strided = [i for i in different if self._expected[i].layout is torch.strided]
        ranges = self._ranges(strided) if strided else {}
        for i, what in different.items():
            values = self._expected[i], results[i], self._exact[i]
            if i not in ranges or not _is_possible(*values, ranges[i]):
                raise RewriteError(
                    f"output {i} of {name} differs from that of the graph that PyTorch traced: it "
                    f"{what}. This is a bug in nimble_fx, please report it; fold_weights=False and "
                    "kernels='aten' leave most of that graph as it is"
                )

    def _ranges(self, outputs: Iterable[int]) -> Mapping[int, RoundingRange]:
        """The ranges of some outputs, from several runs with random rounding errors.

        Memory: two of each of these outputs in float64, besides what a run needs.
        """
        ranges = {i: RoundingRange(self._expected[i]) for i in outputs}
        for seed in range(N_RUNS):
            with self._random.preserved():
                others = in_float64(self._graph, self._args, error_seed=seed)
            if others is None:
                break  # other seeds would meet the same operator
            for i, known in ranges.items():
                known.add(others[i])
        for i, known in ranges.items():
            known.add(self._exact[i])
        return ranges


def _is_possible(expected: Tensor, result: Tensor, exact: Tensor, known: RoundingRange) -> bool:
    """Whether a result is as rounding may make it: right where rounding decides nothing."""
    if result.dtype != expected.dtype:
        return False
    if len(known.shapes) > 1:
        return known.has_shape(result.shape)
    if result.shape not in known.shapes:
        return False
    if not (result.is_floating_point() or result.is_complex()):
        return known.has_numbers(result)
    is_decided = ~known.undecided(result.dtype)
    return difference(expected[is_decided], result[is_decided], exact[is_decided]) is None
