"""Branches, loops, breaks and errors in the middle of a model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.beside_eager import CPU, Compile, assert_as_eager


def a_branch_by_data(compile_: Compile) -> Any:
    def run(x: Tensor) -> Tensor:
        y = torch.relu(x) + torch.sigmoid(x)
        return y * 2 if y.sum() > 3 else y - 1

    compiled = compile_(run)
    return compiled(torch.ones(4)), compiled(-torch.ones(4)), compiled(torch.ones(4))


def a_loop_until(compile_: Compile) -> Any:
    def run(x: Tensor) -> Tensor:
        while x.abs().sum() > 1:
            x = x / 2 + torch.sin(x) * 0.1
        return x

    return compile_(run)(torch.ones(4) * 9)


def a_branch_by_a_python_value(compile_: Compile) -> Any:
    def run(x: Tensor, how: str, times: int) -> Tensor:
        for _ in range(times):
            x = torch.relu(x) if how == "relu" else torch.tanh(x)
        return x

    compiled, x = compile_(run), torch.randn(4)
    return compiled(x, "relu", 1), compiled(x, "tanh", 2), compiled(x, "tanh", 3)


def a_part_that_is_not_compiled(compile_: Compile) -> Any:
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def by_hand(x: Tensor) -> Tensor:
        return torch.tensor([float(v) + 1 for v in x])

    def run(x: Tensor) -> Tensor:
        return torch.sigmoid(by_hand(torch.relu(x) * 2)) + torch.tanh(x)

    return compile_(run)(torch.randn(4))


def an_error_in_the_middle(compile_: Compile) -> Any:
    state = torch.zeros(4)

    def run(x: Tensor, fail: bool) -> Tensor:
        state.add_(1)
        torch._dynamo.graph_break()
        if fail:
            raise KeyError("mine")
        return x * state

    compiled, x = compile_(run), torch.ones(4)
    first = compiled(x, False).clone()
    with pytest.raises(KeyError, match="mine"):
        compiled(x, True)
    return first, compiled(x, False), state


def an_error_that_the_model_catches(compile_: Compile) -> Any:
    def run(x: Tensor) -> Tensor:
        try:
            y = torch.relu(x)
            if y.shape[0] == 4:
                raise ValueError("four")
        except ValueError:
            y = torch.tanh(x)
        return y + 1

    compiled = compile_(run)
    return compiled(torch.randn(4)), compiled(torch.randn(5))


class Inner(nn.Module):
    """A module that is compiled itself."""

    def __init__(self, compile_: Compile) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.compiled = compile_(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.compiled(x)
        return torch.relu(y) + torch.sigmoid(y)


def compiled_within_compiled(compile_: Compile) -> Any:
    model = Inner(compile_)
    x = torch.randn(3, 4)
    run = compile_(model)
    y = run(x)
    y.sum().backward()
    return y, model.linear.weight.grad, model(x), model.compiled(x)


def generators_and_closures(compile_: Compile) -> Any:
    scale = torch.full((4,), 2.0)

    def parts(x: Tensor) -> Any:
        yield torch.relu(x) * scale
        yield torch.sigmoid(x)

    def run(x: Tensor) -> Tensor:
        return torch.stack(list(parts(x))).sum(0)

    compiled, x = compile_(run), torch.randn(4)
    first = compiled(x)
    scale.mul_(2)
    return first, compiled(x)


SCENARIOS: tuple[Callable[[Compile], Any], ...] = (
    *(a_branch_by_data, a_loop_until, a_branch_by_a_python_value, a_part_that_is_not_compiled),
    *(an_error_in_the_middle, an_error_that_the_model_catches, compiled_within_compiled),
    generators_and_closures,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_control_flow_is_eagers(scenario: Any) -> None:
    assert_as_eager(scenario, CPU)


def with_cond(compile_: Compile) -> Any:
    def run(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + torch.relu(x)

    compiled = compile_(run)
    return compiled(torch.ones(4)), compiled(-torch.ones(4))


def with_while_loop(compile_: Compile) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    def run(n: Tensor, x: Tensor) -> Any:
        return while_loop(lambda n, _: n > 0, lambda n, x: (n - 1, x * 2), (n, x))

    return compile_(run)(torch.tensor(3), torch.ones(4))


@pytest.mark.parametrize("scenario", [with_cond, with_while_loop])
def test_operators_with_branches_of_their_own_are_eagers(scenario: Any) -> None:
    assert_as_eager(scenario, CPU | {"on_fallback": "silent"})


class Pruned(nn.Module):
    """Three layers, the second of which has a sparse weight."""

    def __init__(self) -> None:
        super().__init__()
        pruned = nn.Linear(16, 16)
        sparse = (pruned.weight.detach() * (torch.rand(16, 16) < 0.2)).to_sparse_csr()
        pruned.weight = nn.Parameter(sparse, requires_grad=False)
        self.before, self.pruned, self.after = nn.Linear(16, 16), pruned, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.before(x))
        x = torch.relu(self.pruned(x))
        return torch.relu(self.after(x))


def test_what_is_around_a_sparse_weight_is_scheduled() -> None:
    model, x = Pruned().eval(), torch.randn(2, 16)
    with torch.no_grad():
        compiled = torch.compile(model, backend="nimble")
        torch.testing.assert_close(compiled(x), model(x))
    targets = [{task.target for task in p.graph.tasks} for p in nimble_fx.programs()]
    assert len(targets) == 2
    assert all(torch.ops.aten.addmm.default in each for each in targets)
