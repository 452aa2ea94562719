"""Checks of linear algebra are tasks; other operators with effects run as traced, in order."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.torch_internals.names import lookup
from tests.support.eager import assert_same

register_effect: Any = lookup("torch._higher_order_ops.effects._register_effectful_op")
ordered: Any = lookup("torch._higher_order_ops.effects._EffectType").ORDERED
DEVICES: list[dict[str, Any]] = [{}, {"device": "virtual", "freeze": False, "policy": "nimble"}]


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


def test_a_check_is_not_captured() -> None:
    compiled = torch.compile(
        inverse, backend="nimble", options={"device": "virtual", "on_fallback": "silent"}
    )
    compiled(torch.eye(3))
    (program,) = nimble_fx.programs()
    has_check = any("check_errors" in str(task.target) for task in program.graph.tasks)
    reasons = [fallback.reason for fallback in nimble_fx.fallbacks()]
    assert ["the host waits for its result" in reason for reason in reasons] == [True] * has_check


class WeightFirst(nn.Module):
    """Inverts a weight, and reads another one after its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(torch.eye(3)), nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.linalg.inv(self.first) + x) @ self.last


class WeightLast(WeightFirst):
    """Inverts its input, and reads two weights after it."""

    def forward(self, x: Tensor) -> Tensor:
        return (torch.linalg.inv(x) + self.last) @ self.first


@pytest.mark.parametrize("options", [{"fold_weights": False}, *DEVICES[1:]], ids=str)
@pytest.mark.parametrize("kind", [WeightFirst, WeightLast])
@pytest.mark.parametrize("training", [False, True])
def test_parameters_beside_a_check_are_known(
    kind: type[nn.Module], training: bool, options: dict[str, Any]
) -> None:
    model, x = kind(), torch.randn(3, 3) + 4 * torch.eye(3)
    compiled = torch.compile(model, backend="nimble", options={"on_fallback": "error"} | options)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    inputs = {value.name: value.static for value in nimble_fx.programs()[0].graph.inputs}
    assert inputs == {"x": False, "first": True, "last": True}


def test_a_weight_that_is_inverted_is_folded_with_its_check() -> None:
    model, x = WeightFirst(), torch.randn(3, 3)
    compiled = torch.compile(model, backend="nimble", options={"fold_weights": True})
    with torch.no_grad():
        assert_same(compiled(x), model(x))
        model.first.copy_(2 * torch.eye(3))
        assert_same(compiled(x), model(x))
        model.first.zero_()
        plain = torch.compile(model, backend="aot_eager")
        assert raises(compiled) == raises(plain)


CALLS: list[int] = []


@pytest.fixture(scope="module")
def effect() -> Iterator[Any]:
    """An operator whose calls are in `CALLS`, in order."""

    def run(x: Tensor, n: int) -> Tensor:
        CALLS.append(n)
        return x + n

    with torch.library._scoped_library("effects_test", "FRAGMENT") as library:
        library.define("one(Tensor x, int n) -> Tensor")
        library.impl("one", run, "CPU")
        library.impl("one", lambda x, n: x + n, "Meta")
        handle = register_effect(torch.ops.effects_test.one.default, ordered)
        yield torch.ops.effects_test.one
        handle.destroy()


@pytest.mark.parametrize("options", [*DEVICES, {"kernels": "auto"}], ids=str)
def test_operators_with_other_effects_run_once_and_in_order(
    effect: Any, options: dict[str, Any]
) -> None:
    class Model(WeightFirst):
        def forward(self, x: Tensor) -> Tensor:
            return effect(x, 1) * effect(x @ self.last, 2) + effect(x, 3)

    model, x = Model(), torch.randn(3, 3)
    compiled = torch.compile(model, backend="nimble", options=options)
    CALLS.clear()
    with torch.no_grad(), pytest.warns(nimble_fx.NimbleWarning, match="around effects_test.one"):
        result = compiled(x)
    assert CALLS == [1, 2, 3]
    assert_same(result, model(x).detach())


def test_a_higher_order_operator_with_effects_runs_as_traced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show = lookup("torch._higher_order_ops.print")

    def program(x: Tensor) -> Tensor:
        show("x is {}", x.sum())
        return torch.linalg.inv(x) + 1

    compiled = torch.compile(program, backend="nimble")
    with pytest.warns(nimble_fx.NimbleWarning, match=r"higher-order operator around print .*x is"):
        result = compiled(torch.eye(2))
    assert torch.equal(result, torch.eye(2) + 1)
    assert "x is 2" in capsys.readouterr().out
