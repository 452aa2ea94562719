"""Arguments and buffers that share memory in some calls, but did not at compile time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.fallback import AS_TRACED
from tests.support.beside_eager import CPU, VIRTUAL, Compile, assert_as_eager

OPTIONS = {
    "cpu": CPU,
    "cpu by default": {},
    "frozen": VIRTUAL,
    "launched": VIRTUAL | {"freeze": False},
    "Inductor's kernels": {"kernels": "inductor"},
}


class Cell(nn.Module):
    """Reads its argument before it writes a small buffer."""

    state: Tensor
    previous: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(2, 4))
        self.register_buffer("previous", torch.zeros(2, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = self.layer(y)
        late = torch.tanh(torch.sigmoid(a) @ self.layer.weight)
        result = late + x + self.previous
        self.state.copy_(a.detach())
        return result


def an_argument_is_a_view_of_a_written_buffer(compile_: Compile) -> Any:
    model, y = Cell(), torch.randn(2, 4)
    run, results = compile_(model), []
    with torch.no_grad():
        results.append(run(torch.zeros(2, 4), y))
        for _ in range(3):
            results.append(run(model.state.view(2, 4), y))
            results.append(model.state.clone())
    return results


class Counter(nn.Module):
    """Writes a buffer before it reads its argument, which it leaves alone."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * 2


def an_argument_is_a_view_of_a_buffer_that_alone_is_written(compile_: Compile) -> Any:
    model, results = Counter(), []
    run = compile_(model)
    with torch.no_grad():
        for x in (torch.ones(4), torch.ones(4), model.count[:4], model.count[2:6], torch.ones(4)):
            results.append(run(x))
    return results, model.count


def a_buffer_becomes_a_view_of_a_written_one(compile_: Compile) -> Any:
    model, y = Cell(), torch.randn(2, 4)
    run, results = compile_(model), []
    with torch.no_grad():
        results.append(run(y, y))
        flat = torch.zeros(12)
        model.state, model.previous = flat[:8].view(2, 4), flat[4:].view(2, 4)
        results += [run(y, y), run(y + 1, y), flat.clone()]
    return results


def training_on_a_view_of_a_written_buffer(compile_: Compile) -> Any:
    model, y = Cell(), torch.randn(2, 4)
    run = compile_(model)
    run(torch.zeros(2, 4), y).sum().backward()
    run(model.state.view(2, 4), y).sum().backward()
    return model.layer.weight.grad, model.state


def two_arguments_come_to_overlap(compile_: Compile) -> Any:
    def step(target: Tensor, source: Tensor, y: Tensor) -> Tensor:
        a = y * 2
        result = torch.tanh(torch.sigmoid(a) @ y) + source
        target.copy_(a)
        return result

    run, flat, y = compile_(step), torch.zeros(24), torch.randn(4, 4)
    apart = run(torch.zeros(4, 4), torch.zeros(4, 4), y)
    return apart, run(flat[:16].view(4, 4), flat[8:].view(4, 4), y), flat


def parts_of_one_tensor_come_to_overlap(compile_: Compile) -> Any:
    def read_then_write(x: Tensor, y: Tensor) -> Tensor:
        result = x.sum() + y * 2
        x.add_(1)
        return result

    run, results = compile_(read_then_write), []
    for start in (5, 3, 5, 0):
        flat = torch.arange(10.0)
        results += [
            run(flat[:5], flat[start : start + 5].clone() if not start else flat[start:][:5]),
            flat,
        ]
    return results


def an_unwritten_part_is_expanded(compile_: Compile) -> Any:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    flat = torch.arange(10.0)
    return compile_(run)(flat[:5], flat[5:6].expand(5)), flat


def a_write_is_fused_with_a_read_before_it(compile_: Compile) -> Any:
    def run(x: Tensor, y: Tensor) -> Tensor:
        result = y * 2
        x.add_(1)
        return result

    compiled, flat = compile_(run), torch.arange(12.0)
    compiled(torch.ones(6), torch.ones(6))
    return compiled(flat[:6], flat[3:9]), flat


def two_written_arguments_come_to_overlap(compile_: Compile) -> Any:
    def run(x: Tensor, y: Tensor) -> Tensor:
        total = x.sum() + y.sum()
        x.copy_(total + torch.zeros_like(x))
        y.copy_(total + torch.ones_like(y))
        return total

    compiled, flat = compile_(run), torch.arange(10.0)
    compiled(torch.ones(5), torch.ones(5))
    return compiled(flat[:5], flat[3:8]), flat


def saved_inputs_come_to_have_memory_of_their_own(compile_: Compile) -> Any:
    """The backward alone holds them: what frees one hands its memory out."""
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(3)]

    def branches(*inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        loss, following = torch.zeros(()), []
        for x, weight, n in zip(inputs, weights, (1, 1, 5), strict=True):
            branch = x @ weight
            for _ in range(n):
                branch = branch.sin()
            following.append(x * 0.5)
            loss = loss + branch.sum()
        return loss, following

    run, results = compile_(branches), list[Tensor]()
    inputs = list(torch.randn(48, 16).chunk(3))
    for _ in range(4):
        loss, following = run(*inputs)
        inputs = []
        results += torch.autograd.grad(loss, weights)
        inputs = [x.detach() for x in following]
        following.clear()
    return results


SCENARIOS: tuple[Callable[[Compile], Any], ...] = (
    *(an_argument_is_a_view_of_a_written_buffer, a_buffer_becomes_a_view_of_a_written_one),
    an_argument_is_a_view_of_a_buffer_that_alone_is_written,
    *(training_on_a_view_of_a_written_buffer, two_arguments_come_to_overlap),
    a_write_is_fused_with_a_read_before_it,
    *(parts_of_one_tensor_come_to_overlap, an_unwritten_part_is_expanded),
    *(two_written_arguments_come_to_overlap, saved_inputs_come_to_have_memory_of_their_own),
)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_what_is_read_before_a_write_is_read_before_it(
    scenario: Any, options: dict[str, Any]
) -> None:
    assert_as_eager(scenario, options | {"on_fallback": "silent"})


def test_the_fallback_names_what_shares_memory() -> None:
    model, y = Cell(), torch.randn(2, 4)
    run = torch.compile(model, backend="nimble", options={"on_fallback": "silent"})
    with torch.no_grad():
        run(torch.zeros(2, 4), y)
        assert nimble_fx.fallbacks() == ()
        run(model.state[:], y)
    (fallback,) = nimble_fx.fallbacks()
    assert fallback.runs == AS_TRACED
    assert "x and state share memory" in fallback.reason
