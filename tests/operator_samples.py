"""PyTorch's own samples of operators and modules, compiled: results, layouts and gradients.

    python -m tests.operator_samples --device virtual

prints how many samples were run and which are wrong: where nimble differs from eager and
`aot_eager`, which traces alike and schedules nothing, does not.
"""

import argparse
import gc
import importlib
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from nimble_fx import fallbacks
from nimble_fx.options import Kernels
from tests.support.samples import DTYPES, Sample, bad_samples, names, samples

_N_AT_ONCE = 16
"""Samples that are compiled as one graph, which costs less than as many graphs."""

_KINDS = ("forward", "gradients", "errors")


@dataclass(frozen=True)
class Way:
    """How samples are run; in eager without a backend.

    Attributes:
        backend, options: as for `torch.compile`.
        n_calls: how often each is called; on the virtual device each call has an order of its own.
    """

    backend: str | Callable[..., Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    n_calls: int = 1


EAGER, AS_TRACED = Way(), Way("aot_eager")


def nimble_on(device: str, seed: int, kernels: Kernels = "aten") -> Way:
    """The backend under test, on "cpu" or "virtual"."""
    if device == "cpu":
        return Way("nimble", {"kernels": kernels})
    options = {"device": device, "seed": seed, "policy": "nimble", "kernels": kernels}
    return Way("nimble", options, n_calls=2)


@dataclass
class Totals:
    """What came of samples.

    Attributes:
        counts: how many gave eager's results, raised as eager does, and so on.
        wrong: what is wrong with which.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def judge(batch: Sequence[Sample], way: Way, gradients: bool, totals: Totals) -> None:
    """Adds what comes of samples: of all at once if they are right, else of each half."""
    if len(batch) == 1:
        verdict = _verdict(batch[0], way, gradients)
        totals.counts[verdict.partition(":")[0]] += 1
        if verdict.startswith("wrong"):
            totals.wrong.append(f"{batch[0].name}: {verdict}")
    elif _are_right(batch, way, gradients):
        totals.counts["right"] += len(batch)
    else:
        half = len(batch) // 2
        judge(batch[:half], way, gradients, totals)
        judge(batch[half:], way, gradients, totals)


def _are_right(batch: Sequence[Sample], way: Way, gradients: bool) -> bool:
    try:
        expected, results = run(batch, EAGER, gradients)[0], run(batch, way, gradients)
    except Exception:  # of any of the samples; each is judged by itself
        return False
    return all(_unlike(batch, each, expected) is None for each in results)


def _verdict(sample: Sample, way: Way, gradients: bool) -> str:
    """What came of one sample; it begins with "wrong:" if that is our doing."""
    expected = _run_or_error(sample, EAGER, gradients)
    difference = _difference(sample, way, expected, gradients)
    if difference is None:
        return "raises as in eager" if isinstance(expected, Exception) else "right"
    if _difference(sample, AS_TRACED, expected, gradients) is None:
        return f"wrong: {difference}"
    return f"not eager's by aot_eager either: {difference}"


def _difference(sample: Sample, way: Way, expected: Any, gradients: bool) -> str | None:
    ours = _run_or_error(sample, way, gradients)
    if isinstance(expected, Exception):
        return None if isinstance(ours, Exception) else f"does not raise {expected!r}"
    if isinstance(ours, Exception):
        return f"raises {ours!r}"[:600]
    return next(filter(None, (_unlike([sample], each, expected[0]) for each in ours)), None)


def _run_or_error(sample: Sample, way: Way, gradients: bool) -> Any:
    try:
        return run([sample], way, gradients)
    except Exception as error:
        return error


def run(batch: Sequence[Sample], way: Way, gradients: bool) -> list[Any]:
    """For each call: results, what arguments and state are after it, and gradients."""
    torch.compiler.reset()
    calls = [sample.call for sample in batch]

    def function(given: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        return [call(*args, **kw) for call, (args, kw) in zip(calls, given, strict=True)]

    compiled: Callable[..., Any] = function
    if way.backend is not None:
        compiled = torch.compile(function, backend=way.backend, options=way.options or None)
    state = [tensor for sample in batch for tensor in sample.state]
    before, results = [tensor.clone() for tensor in state], []
    try:
        for _ in range(way.n_calls):
            results.append(_called(batch, compiled, gradients))
            _put_back(state, before)
    finally:
        _put_back(state, before)
    if bugs := [str(each) for each in fallbacks() if "bug in nimble_fx" in each.reason]:
        raise AssertionError(bugs)
    return results


@torch.no_grad()
def _put_back(state: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)


def _called(batch: Sequence[Sample], compiled: Callable[..., Any], gradients: bool) -> Any:
    given = [sample.arguments() for sample in batch]
    torch.manual_seed(1)
    with torch.set_grad_enabled(gradients):
        results = compiled(given)
        seen = [s.differentiable(r) for s, r in zip(batch, results, strict=True)]
    slopes = _gradients(batch, given, seen) if gradients else ()
    state = [tensor.clone() for sample in batch for tensor in sample.state]
    return pytree.tree_map_only(Tensor, Tensor.detach, (results, given, state, slopes))


def _gradients(batch: Sequence[Sample], given: Any, results: Any) -> Sequence[Tensor | None]:
    """Those of arguments and parameters, for random gradients of the results."""
    leaves = [*pytree.tree_leaves(given), *(p for sample in batch for p in sample.parameters)]
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    outputs = [x for x in pytree.tree_leaves(results) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted or not outputs:
        return ()
    slopes = [torch.randn_like(x, memory_format=torch.contiguous_format) for x in outputs]
    return torch.autograd.grad(outputs, wanted, slopes, allow_unused=True)


def _unlike(batch: Sequence[Sample], ours: Any, expected: Any) -> str | None:
    """Where results are not eager's; None if they are. Gradients may have other strides."""
    has_values = all(sample.has_values for sample in batch)
    for part, (left, right) in enumerate(zip(ours, expected, strict=True)):
        one, spec = pytree.tree_flatten(left)
        two, other = pytree.tree_flatten(right)
        if spec != other:
            return f"returns {spec}, eager {other}"
        has_strides = part < len(ours) - 1
        found = (_differ(*pair, has_values, has_strides) for pair in zip(one, two, strict=True))
        if difference := next(filter(None, found), None):
            return difference
    return None


def _differ(one: Any, two: Any, has_values: bool, has_strides: bool) -> str | None:
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        same = type(one) is type(two) and (one == two or one != one)
        return None if same else f"returns {one}, eager {two}"
    ours, expected = (_layout(tensor, has_strides) for tensor in (one, two))
    if ours != expected:
        return f"returns {ours}, eager {expected}"
    if not has_values:
        return None
    try:
        torch.testing.assert_close(one, two, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def _layout(tensor: Tensor, has_strides: bool) -> tuple[Any, ...]:
    """Type, shape, strides; those of dimensions with one element say nothing."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.dtype, tensor.layout
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [step for n, step in steps if n > 1] if has_strides and tensor.numel() else []
    return tensor.dtype, tuple(tensor.shape), strides


def judged(
    name: str, dtype: torch.dtype, way: Way, gradients: bool, limit: int | None = None
) -> Totals:
    """What comes of an operator's samples, or of `limit` among them."""
    totals, every = Totals(), list(samples(name, dtype, gradients))
    some = every[:: max(1, -(-len(every) // limit))] if limit else every
    for start in range(0, len(some), _N_AT_ONCE):
        judge(some[start : start + _N_AT_ONCE], way, gradients, totals)
    gc.collect()
    return totals


def judged_errors(name: str, way: Way) -> Totals:
    """What comes of an operator's calls that are errors in eager."""
    totals = Totals()
    for sample in bad_samples(name):
        judge([sample], way, False, totals)
    return totals


def assert_right(
    name: str, dtype: torch.dtype, device: str, seed: int, gradients: bool, limit: int | None = None
) -> int:
    """How many samples of an operator are right.

    Raises:
        AssertionError: some are wrong; its note calls this function again.
    """
    totals = judged(name, dtype, nimble_on(device, seed), gradients, limit)
    if totals.wrong:
        error = AssertionError("\n".join(totals.wrong))
        error.add_note(f"assert_right({name!r}, {dtype}, {device!r}, {seed}, {gradients}, {limit})")
        raise error
    return totals.counts.total()


def assert_some_right(device: str) -> int:
    """How many samples of an operator that is picked at random are right."""
    name, seed = random.choice(names()), random.randrange(1000)
    dtype, gradients = random.choice(DTYPES), random.random() < 0.5
    return assert_right(name, dtype, device, seed, gradients)


def main() -> int:
    """Judges samples and prints the totals; 1 if some are wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.operator_samples", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "virtual"), default="cpu")
    parser.add_argument("--kernels", choices=get_args(Kernels), default="aten")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="a regular expression that names match")
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
    parser.add_argument("--limit", type=int, help="samples of each operator")
    args = parser.parse_args()
    importlib.import_module("tests.conftest")
    warnings.simplefilter("ignore")
    chosen = [name for name in names() if re.search(args.only, name)]
    way, dtype = nimble_on(args.device, args.seed, args.kernels), getattr(torch, args.dtype)
    kinds: dict[str, Callable[[str], Totals]] = {
        "forward": lambda name: judged(name, dtype, way, False, args.limit),
        "gradients": lambda name: judged(name, dtype, way, True, args.limit),
        "errors": lambda name: judged_errors(name, way),
    }
    n_wrong = 0
    for kind in args.kinds:
        judge_one = kinds[kind]
        counts: Counter[str] = Counter()
        for name in chosen:
            totals = judge_one(name)
            counts += totals.counts
            n_wrong += len(totals.wrong)
            for line in totals.wrong:
                print(line)
        print(f"{kind}: {counts.total():,} samples; {dict(counts)}")
    print(f"programs that fell back or were frozen: {dict(counters['nimble'])}")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
