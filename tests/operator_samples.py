"""PyTorch's own samples of its operators and modules: compiled, they give what eager gives.

    python -m tests.operator_samples --device virtual

prints how many samples were run and which are wrong: where nimble differs from eager and
`aot_eager`, which traces alike and schedules nothing, does not.
"""

import argparse
import copy
import gc
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)
_UNINITIALIZED = ("empty", "new_empty", "resize")
_N_AT_ONCE = 16
"""Samples that are compiled as one graph, which costs less than as many graphs."""


@dataclass(frozen=True)
class Sample:
    """A call of an operator or of a module.

    Attributes:
        name: which operator and which of its samples.
        call: the function or the module.
        args, kwargs: what it is called with; copied for each call.
        differentiable: what of its results has gradients.
        has_values: whether it writes all of what it returns.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiable: Callable[[Any], Any] = lambda result: result
    has_values: bool = True


@dataclass(frozen=True)
class Way:
    """How samples are compiled; eager without a backend.

    Attributes:
        backend, options: as for `torch.compile`.
        n_calls: how often each is called; on the virtual device each call has an order of its own.
    """

    backend: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    n_calls: int = 1


EAGER, AS_TRACED = Way(), Way("aot_eager")


def nimble_on(device: str, seed: int) -> Way:
    """The backend under test on "cpu" or "virtual"."""
    if device == "cpu":
        return Way("nimble")
    return Way("nimble", {"device": device, "seed": seed, "policy": "nimble"}, n_calls=2)


@dataclass
class Totals:
    """What came of samples.

    Attributes:
        counts: how many were run, gave eager's results, raised as eager does, and so on.
        wrong: what is wrong with which.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def names() -> list[str]:
    """Of all operators and modules, as `samples` takes them."""
    return [*_OPERATORS, *_MODULES]


def samples(name: str, dtype: torch.dtype, gradients: bool) -> Iterator[Sample]:
    """An operator's samples with elements of a type; none where it has no such."""
    torch.manual_seed(0)
    if name in _MODULES:
        yield from _module_samples(name, dtype, gradients)
        return
    operator = _OPERATORS[name]
    if dtype not in operator.supported_dtypes("cpu"):
        return
    if gradients and dtype not in operator.supported_backward_dtypes("cpu"):
        return
    has_values = not name.startswith(_UNINITIALIZED)
    for i, sample in enumerate(operator.sample_inputs("cpu", dtype, requires_grad=gradients)):
        args = (sample.input, *sample.args)
        read = sample.output_process_fn_grad
        full = f"{name} {dtype} {i}"
        yield Sample(full, operator.op, args, sample.kwargs, read, has_values)


def _module_samples(name: str, dtype: torch.dtype, gradients: bool) -> Iterator[Sample]:
    info = _MODULES[name]
    if dtype not in info.dtypes or not info.supports_gradgrad and gradients:
        return
    for training in (False, True):
        given = info.module_inputs_func(info, "cpu", dtype, gradients, training)
        for i, each in enumerate(given):
            make, forward = each.constructor_input, each.forward_input
            module = info.module_cls(*make.args, **make.kwargs).to(dtype).train(training)
            mode = "training" if training else "inference"
            yield Sample(f"{name} {dtype} {mode} {i}", module, forward.args, forward.kwargs)


def judge(batch: Sequence[Sample], way: Way, gradients: bool, totals: Totals) -> None:
    """Adds what comes of samples: of all at once if they are right, else of each half."""
    if len(batch) > 1:
        if _are_right(batch, way, gradients):
            totals.counts["right"] += len(batch)
            return
        half = len(batch) // 2
        judge(batch[:half], way, gradients, totals)
        judge(batch[half:], way, gradients, totals)
        return
    verdict = _verdict(batch[0], way, gradients)
    totals.counts[verdict.partition(":")[0]] += 1
    if verdict.startswith("wrong"):
        kind = "gradients" if gradients else "forward"
        totals.wrong.append(f"{batch[0].name} ({kind}): {verdict}")


def _are_right(batch: Sequence[Sample], way: Way, gradients: bool) -> bool:
    try:
        expected, results = run(batch, EAGER, gradients)[0], run(batch, way, gradients)
    except Exception:  # of any of the samples; each is judged by itself
        return False
    return all(_unlike(batch, each, expected) is None for each in results)


def _verdict(sample: Sample, way: Way, gradients: bool) -> str:
    """What came of one sample; it begins with "wrong:" if that is our doing."""
    expected = _run_or_error([sample], EAGER, gradients)
    difference = _difference_or_error(sample, way, expected, gradients)
    if difference is None:
        return "raises as in eager" if isinstance(expected, Exception) else "right"
    if _difference_or_error(sample, AS_TRACED, expected, gradients) is None:
        return f"wrong: {difference}"
    return f"not eager's by aot_eager either: {difference}"


def _difference_or_error(sample: Sample, way: Way, expected: Any, gradients: bool) -> str | None:
    ours = _run_or_error([sample], way, gradients)
    if isinstance(expected, Exception):
        return None if isinstance(ours, Exception) else f"does not raise {expected!r}"
    if isinstance(ours, Exception):
        return f"raises {ours!r}"[:600]
    return next(filter(None, (_unlike([sample], each, expected[0]) for each in ours)), None)


def _run_or_error(batch: Sequence[Sample], way: Way, gradients: bool) -> Any:
    try:
        return run(batch, way, gradients)
    except Exception as error:
        return error


def run(batch: Sequence[Sample], way: Way, gradients: bool) -> list[Any]:
    """For each call: all results of each sample, its arguments after it, and all gradients."""
    torch.compiler.reset()
    calls = [sample.call for sample in batch]

    def function(given: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        return [call(*args, **kw) for call, (args, kw) in zip(calls, given, strict=True)]

    compiled: Callable[..., Any] = function
    if way.backend is not None:
        compiled = torch.compile(function, backend=way.backend, options=way.options or None)
    saved = [copy.deepcopy(c.state_dict()) if isinstance(c, nn.Module) else None for c in calls]
    made = []
    for _ in range(way.n_calls):
        for call, state in zip(calls, saved, strict=True):
            if isinstance(call, nn.Module):
                call.load_state_dict(state)  # type: ignore[arg-type]
        made.append(_called(batch, compiled, gradients))
    return made


def _called(batch: Sequence[Sample], compiled: Callable[..., Any], gradients: bool) -> Any:
    given = [(_fresh(sample.args), _fresh(sample.kwargs)) for sample in batch]
    torch.manual_seed(1)
    with torch.set_grad_enabled(gradients):
        results = compiled(given)
        wanted = [s.differentiable(r) for s, r in zip(batch, results, strict=True)]
    after = [given, [_buffers(sample.call) for sample in batch]]
    slopes = _gradients(batch, given, wanted) if gradients else ()
    plain = pytree.tree_map_only(Tensor, torch.Tensor.detach, (results, after))
    return [plain, slopes]


def _gradients(batch: Sequence[Sample], given: Any, results: Any) -> tuple[Tensor | None, ...]:
    """Those of all arguments and parameters, for made-up gradients of the results."""
    parameters = [p for s in batch if isinstance(s.call, nn.Module) for p in s.call.parameters()]
    leaves = [x for x in pytree.tree_leaves(given) if isinstance(x, Tensor)]
    wanted = [x for x in (*leaves, *parameters) if x.requires_grad]
    outputs = [x for x in pytree.tree_leaves(results) if isinstance(x, Tensor) and x.requires_grad]
    slopes = [torch.randn_like(x, memory_format=torch.contiguous_format) for x in outputs]
    if not wanted or not outputs:
        return ()
    return torch.autograd.grad(outputs, wanted, slopes, allow_unused=True)


def _buffers(call: Callable[..., Any]) -> list[Tensor]:
    return list(call.buffers()) if isinstance(call, nn.Module) else []


def _fresh(values: Any) -> Any:
    """A copy, with the same strides and the same sharing of memory."""
    memo: dict[int, Any] = {}

    def copied(value: Tensor) -> Tensor:
        twin = copy.deepcopy(value.detach(), memo)
        return twin.requires_grad_(value.requires_grad)

    return pytree.tree_map_only(Tensor, copied, values)


def _unlike(batch: Sequence[Sample], ours: Any, expected: Any) -> str | None:
    """Where results are not eager's; None if they are."""
    left, spec = pytree.tree_flatten(ours)
    right, other = pytree.tree_flatten(expected)
    if spec != other:
        return f"returns {spec}, eager {other}"
    has_values = all(sample.has_values for sample in batch)
    for one, two in zip(left, right, strict=True):
        difference = _differ(one, two, has_values)
        if difference is not None:
            return difference
    return None


def _differ(one: Any, two: Any, has_values: bool) -> str | None:
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        same = type(one) is type(two) and (one == two or one != one)
        return None if same else f"returns {one}, eager {two}"
    if _layout(one) != _layout(two):
        return f"returns {_layout(one)}, eager {_layout(two)}"
    if not has_values:
        return None
    try:
        torch.testing.assert_close(one, two, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    """Strides of dimensions with one element say nothing."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return (tensor.dtype, tensor.layout)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [step for n, step in sizes if n > 1] if tensor.numel() else []
    return (tensor.dtype, tuple(tensor.shape), strides)


_OPERATORS = {op.full_name: op for op in op_db}
_MODULES = {f"nn.{info.name}": info for info in module_db}


def judge_all(
    chosen: Sequence[str], dtype: torch.dtype, way: Way, gradients: bool, limit: int | None = None
) -> Totals:
    """What comes of the samples of operators, about `limit` of each."""
    totals = Totals()
    for name in chosen:
        every = list(samples(name, dtype, gradients))
        some = every[:: max(1, len(every) // limit)] if limit else every
        for start in range(0, len(some), _N_AT_ONCE):
            judge(some[start : start + _N_AT_ONCE], way, gradients, totals)
        gc.collect()
    return totals


def main() -> int:
    """Judges samples and prints the totals; 1 if some are wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.operator_samples", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "virtual"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression that names match")
    parser.add_argument("--limit", type=int, help="samples of each operator")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    chosen = [name for name in names() if re.search(args.only, name)]
    n_wrong = 0
    for gradients in (False, True):
        totals = Totals()
        for name in chosen:
            made = judge_all(
                [name],
                getattr(torch, args.dtype),
                nimble_on(args.device, args.seed),
                gradients,
                args.limit,
            )
            totals.counts += made.counts
            for line in made.wrong:
                print("WRONG", line, flush=True)
            n_wrong += len(made.wrong)
        print("gradients" if gradients else "forward", dict(totals.counts), flush=True)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    importlib = __import__("importlib")
    importlib.import_module("tests.conftest")
    warnings.simplefilter("ignore")
    sys.exit(main())
