"""Results may differ where rounding decides them, and nowhere else."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.runtime.compared_values import compared_once
from nimble_fx.runtime.reference_runs import in_float64


def sums(x: Tensor) -> Tensor:
    return x.sum(1)


def exact_sums(x: Tensor) -> Tensor:
    return x.double().sum(1).float()


def choices(x: Tensor, sums: Callable[[Tensor], Tensor] = sums) -> list[Tensor]:
    """Results that depend on how the sums of the rows compare."""
    y = sums(x)
    is_above = y > y.mean()
    return [y.argsort(), is_above, x.index_select(0, y.argmax().view(1)), y.where(is_above, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_ties_may_be_decided_otherwise(seed: int) -> None:
    torch.manual_seed(seed)
    row = torch.rand(50)
    x = torch.stack([row[torch.randperm(50)] for _ in range(9)])
    gm = make_fx(lambda x: choices(x), tracing_mode="fake")(x)
    run = compared_once(lambda args: choices(args[0], exact_sums), gm, "choices")
    assert not torch.equal(run([x])[0], choices(x)[0])


def test_runs_with_errors_differ_whatever_the_default_device_is() -> None:
    x = torch.rand(9)
    gm = make_fx(lambda x: [x * 3.3], tracing_mode="fake")(x)
    with torch.device("meta"):
        runs = [in_float64(gm, [x], seed) for seed in (None, 0, 1)]
    exact, *others = [result for run in runs if run is not None for result in run]
    assert len(others) == 2
    for other in others:
        assert not torch.equal(other, exact)
        torch.testing.assert_close(other, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("wrong", range(4))
def test_what_is_no_tie_may_not_be_decided_otherwise(wrong: int) -> None:
    def run(args: list[Any]) -> list[Tensor]:
        results = choices(*args)
        results[wrong] = results[wrong].flip(-1)
        return results

    x = torch.arange(450.0).view(9, 50)
    gm = make_fx(lambda x: choices(x), tracing_mode="fake")(x)
    with pytest.raises(nimble_fx.RewriteError, match=f"output {wrong} of choices"):
        compared_once(run, gm, "choices")([x])


def nonzero_errors(x: Tensor) -> list[Tensor]:
    return [((x + 1.1) - 1.1 - x).nonzero()]


@pytest.mark.parametrize("is_possible", [True, False])
def test_rounding_may_decide_how_many_elements_there_are(is_possible: bool) -> None:
    def run(args: list[Any]) -> list[Tensor]:
        (found,) = nonzero_errors(args[0].double())
        return [found if is_possible else found.new_zeros(len(found), 2)]

    x = torch.rand(50) * 1e-9
    gm = make_fx(nonzero_errors, tracing_mode="real")(x)
    assert gm(x)[0].shape != run([x])[0].shape
    unlike = pytest.raises(
        nimble_fx.RewriteError, match=r"output 0 of errors differs .*: it has the shape \["
    )
    with nullcontext() if is_possible else unlike:
        compared_once(run, gm, "errors")([x])


def passes(traced: Any, other: Any, *inputs: Tensor) -> bool:
    """Whether the results of another function are taken for those of a traced one."""
    gm = make_fx(lambda *args: [traced(*args)], tracing_mode="fake")(*inputs)
    try:
        compared_once(lambda args: [other(*args)], gm, "traced")(list(inputs))
    except nimble_fx.RewriteError:
        return False
    return True


WHOLE: dict[str, Any] = {
    "index": lambda x: torch.arange(10.0)[torch.arange(9.0).long()],
    "cast": lambda x: (x * 8).round().to(torch.int8),
    "same": lambda x: x.long().float() == x.long().double(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_have_no_errors_that_could_decide(name: str) -> None:
    x, function = torch.randn(9) * 3, WHOLE[name]
    assert not passes(function, lambda x: torch.zeros_like(function(x)), x)


def test_a_tie_decides_between_what_it_is_a_tie_of_and_nothing_else() -> None:
    def largest(x: Tensor) -> Tensor:
        return x.sum(1).argmax().view(1)

    row = torch.rand(50)
    x = torch.cat([torch.stack([row, row.flip(0)]), torch.zeros(5, 50)])
    assert passes(largest, lambda x: 1 - largest(x), x)
    assert not passes(largest, lambda x: torch.full((1,), 123), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_computed_in_less_precision_is_compared(dtype: torch.dtype) -> None:
    def layers(x: Tensor, weight: Tensor) -> Tensor:
        return ((x @ weight).relu() @ weight).relu() @ weight

    inputs = torch.randn(8, 32).to(dtype), (torch.randn(32, 32) / 6).to(dtype)
    assert passes(layers, lambda *args: layers(*args) * (1 + torch.finfo(dtype).eps), *inputs)
    for factor in (1.2, 0.0):
        assert not passes(layers, lambda *args, f=factor: layers(*args) * f, *inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_another_type_is_an_error(dtype: torch.dtype) -> None:
    assert not passes(torch.relu, lambda x: x.relu().to(dtype), torch.ones(3))


def test_rounding_may_decide_which_elements_are_nan() -> None:
    def distances(x: Tensor) -> Tensor:
        norms = (x * x).sum(1)
        return (norms[:, None] + norms - 2 * (x @ x.t())).sqrt()

    x = torch.randn(16, 16)
    assert passes(distances, lambda x: distances(x).masked_fill(torch.eye(16).bool(), 0), x)
    assert not passes(distances, lambda x: distances(x) * torch.nan, x)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32, torch.uint16, torch.bool]
)
def test_types_without_arithmetic_are_compared(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert passes(lambda x: x.to(dtype), lambda x: x.to(dtype), x)
    assert not passes(lambda x: x.to(dtype), lambda x: (x - 1).to(dtype), x)
