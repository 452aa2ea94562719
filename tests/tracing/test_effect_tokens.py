"""Operators with side effects are tasks, in the order of the program."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.torch_internals.names import lookup
from tests.support.eager import assert_same

register_effect: Any = lookup("torch._higher_order_ops.effects._register_effectful_op")
ordered: Any = lookup("torch._higher_order_ops.effects._EffectType").ORDERED
DEVICES: list[dict[str, Any]] = [{}, {"device": "virtual", "freeze": False}]


def inverse(x: Tensor) -> Tensor:
    return torch.linalg.inv(x) + 1


def several(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.cholesky(x @ x.mT + torch.eye(3)), torch.linalg.solve(x, x.sum(0))


@pytest.mark.parametrize("options", [*DEVICES, {"kernels": "inductor"}], ids=str)
@pytest.mark.parametrize("program", [inverse, several])
@pytest.mark.parametrize("training", [False, True])
def test_linear_algebra_is_scheduled_with_its_checks(
    program: Callable[[Tensor], Any], training: bool, options: dict[str, Any]
) -> None:
    compiled = torch.compile(program, backend="nimble", options={"on_fallback": "error"} | options)
    x = torch.randn(3, 3) + 4 * torch.eye(3)
    xs = [x.clone().requires_grad_(training) for _ in range(2)]
    results = compiled(xs[0]), program(xs[1])
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    if training:
        for result in results:
            sum(each.sum() for each in result).backward()
        torch.testing.assert_close(xs[0].grad, xs[1].grad, atol=1e-4, rtol=1e-4)
    assert nimble_fx.programs()
    plain = torch.compile(program, backend="aot_eager")
    assert raises(compiled) == raises(plain)  # PyTorch 2.11 drops the check


def raises(run: Callable[[Tensor], Any]) -> bool:
    """Whether it refuses a singular matrix."""
    try:
        run(torch.zeros(3, 3))
    except RuntimeError as error:
        return "linalg" in str(error)
    return False


CALLS: list[str] = []


@pytest.fixture(scope="module")
def effects() -> Iterator[Any]:
    """Operators with effects, of no, one and two results."""
    with torch.library._scoped_library("effects_test", "FRAGMENT") as library:
        for name, returns in (("none", "()"), ("one", "Tensor"), ("two", "(Tensor, Tensor)")):
            library.define(f"{name}(Tensor x, int n=0) -> {returns}")
        operators = torch.ops.effects_test
        for name, compute in {
            "none": lambda x, n=0: None,
            "one": lambda x, n=0: x + n,
            "two": lambda x, n=0: (x + n, x * n),
        }.items():

            def run(x: Tensor, n: int = 0, *, name: str = name, compute: Any = compute) -> Any:
                CALLS.append(f"{name} {n}")
                return compute(x, n)

            library.impl(name, run, "CPU")
            library.impl(name, compute, "Meta")
        handles = [
            register_effect(getattr(operators, name).default, ordered)
            for name in ("none", "one", "two")
        ]
        yield operators
        for handle in handles:
            handle.destroy()


@pytest.mark.parametrize("options", DEVICES, ids=str)
def test_operators_that_have_effects_run_in_the_order_of_the_program(
    effects: Any, options: dict[str, Any]
) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        effects.none(x, 1)
        first, second = effects.two(x * 2, 2)
        effects.none(x, n=3)
        third = effects.one(x, 4)
        effects.two(x, 5)
        return first - second, third.relu()

    compiled = torch.compile(program, backend="nimble", options={"on_fallback": "error"} | options)
    x = torch.randn(3)
    for _ in range(2):
        CALLS.clear()
        assert_same(compiled(x), program(x))
        assert CALLS == ["none 1", "two 2", "none 3", "one 4", "two 5"] * 2
    (made,) = nimble_fx.programs()
    assert not any("token" in str(task.target) for task in made.graph.tasks)


def test_a_higher_order_operator_with_effects_runs_as_traced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show = lookup("torch._higher_order_ops.print")

    def program(x: Tensor) -> Tensor:
        show("x is {}", x.sum())
        return x + 1

    compiled = torch.compile(program, backend="nimble")
    with pytest.warns(nimble_fx.NimbleWarning, match=r"higher-order operator around print .*x is"):
        result = compiled(torch.ones(2))
    assert result.tolist() == [2, 2]
    assert "x is 2" in capsys.readouterr().out
