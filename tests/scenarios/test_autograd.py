"""Training loops as users write them: gradients are eager's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.support.beside_eager import VIRTUAL, Compile, assert_as_eager


class Two(nn.Module):
    """Two branches, with a norm and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return torch.relu(self.a(x)) * torch.sigmoid(self.b(x))


def gradients(*modules: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for m in modules for p in m.parameters()]


def checkpoint_around(compile_: Compile, use_reentrant: bool) -> Any:
    model, x = Two(), torch.randn(3, 4, requires_grad=True)
    run = compile_(model)
    y = checkpoint(run, x, use_reentrant=use_reentrant)
    y.sum().backward()
    return y, x.grad, gradients(model)


def checkpoint_within(compile_: Compile, use_reentrant: bool) -> Any:
    model, x = Two(), torch.randn(3, 4, requires_grad=True)

    def twice(x: Tensor) -> Any:
        h = checkpoint(model, x, use_reentrant=use_reentrant)
        return checkpoint(lambda h: torch.tanh(h) * h, h, use_reentrant=use_reentrant)

    y = compile_(twice)(x)
    y.sum().backward()
    return y, x.grad, gradients(model)


def tied_weights(compile_: Compile) -> Any:
    table, out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    out.weight = table.weight
    model = nn.Sequential(table, nn.Tanh(), out)
    run, ids = compile_(model), torch.tensor([[1, 2], [3, 3]])
    for _ in range(2):
        F.cross_entropy(run(ids).flatten(0, 1), ids.flatten()).backward()
    return gradients(model)


def hooks(compile_: Compile) -> Any:
    model, x, seen = Two(), torch.randn(3, 4, requires_grad=True), dict[str, Tensor]()
    model.a.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    model.b.register_forward_hook(lambda _, __, out: out + 1)
    run = compile_(model)
    y = run(x)
    y.register_hook(lambda g: g * 3)
    x.register_hook(lambda g: seen.update(x=g.clone()))
    model.a.weight.register_hook(lambda g: g + 1)
    model.b.weight.register_post_accumulate_grad_hook(lambda p: seen.update(b=p.grad.clone()))
    (y * y).sum().backward()
    return y, x.grad, gradients(model), seen["x"], seen["b"]


def saved_tensor_hooks(compile_: Compile) -> Any:
    model, x = Two(), torch.randn(3, 4, requires_grad=True)
    run = compile_(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        y = run(x)
    y.sum().backward()
    return y, x.grad, gradients(model)


def gradient_accumulation_and_clipping(compile_: Compile) -> Any:
    model = Two()
    run = compile_(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    norms = []
    for step in range(4):
        run(torch.randn(3, 4) + step).square().mean().backward()
        if step % 2:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 1)
    return norms, dict(model.state_dict())


def optimizers(compile_: Compile, make: Callable[..., torch.optim.Optimizer]) -> Any:
    model = Two()
    run, optimizer = compile_(model), make(model.parameters())
    step = compile_(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        run(torch.randn(3, 4)).square().mean().backward()
        step()
    return dict(model.state_dict())


def autocast(compile_: Compile) -> Any:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4, requires_grad=True)
    run = compile_(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(x)
    y.float().sum().backward()
    plain = run(x)
    return y, plain, x.grad, gradients(model)


def modes_in_turn(compile_: Compile) -> Any:
    model, x, seen = Two(), torch.randn(3, 4), list[Any]()
    run = compile_(model)
    for _ in range(2):
        with torch.no_grad():
            seen.append(run(x))
        with torch.inference_mode():
            seen.append(run(x).clone())
        y = run(x)
        y.sum().backward()
        model.eval()
        seen += [y, run(x)]
        model.train()
        model.a.requires_grad_(False)
        run(x).sum().backward()
        model.a.requires_grad_(True)
    return [t.detach().clone() for t in seen], gradients(model), dict(model.state_dict())


def parametrized(compile_: Compile) -> Any:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    run, x = compile_(model), torch.randn(3, 4)
    for _ in range(2):
        y = run(x)
        y.square().sum().backward()
    return y, gradients(model), dict(model.state_dict())


class Cube(torch.autograd.Function):
    """With a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x * 7


def autograd_function(compile_: Compile) -> Any:
    x = torch.randn(3, 4, requires_grad=True)
    y = compile_(lambda x: Cube.apply(x).sin())(x)
    y.sum().backward()
    return y, x.grad


def partial_gradients(compile_: Compile) -> Any:
    model, x = Two(), torch.randn(3, 4, requires_grad=True)
    run = compile_(lambda x: (model(x), x * 2, (x > 0)))
    y, doubled, positive = run(x)
    (only_x,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (from_both,) = torch.autograd.grad((y * doubled).sum(), x)
    return only_x, from_both, positive


def state_loaded_between_calls(compile_: Compile) -> Any:
    model, other, x = Two(), Two(), torch.randn(3, 4)
    run, seen = compile_(model), list[Any]()
    for assign in (False, True):
        seen.append(run(x).detach())
        model.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
        seen.append(run(x).detach())
    return seen


SGD = torch.optim.SGD
SCENARIOS: dict[str, Callable[[Compile], Any]] = {
    "checkpoint around": lambda c: checkpoint_around(c, False),
    "checkpoint around, reentrant": lambda c: checkpoint_around(c, True),
    "checkpoint within": lambda c: checkpoint_within(c, False),
    "checkpoint within, reentrant": lambda c: checkpoint_within(c, True),
    "SGD with momentum": lambda c: optimizers(c, lambda p: SGD(p, 0.1, momentum=0.9)),
    "Adam, one by one": lambda c: optimizers(c, lambda p: torch.optim.Adam(p, foreach=False)),
    "Adam, for each": lambda c: optimizers(c, lambda p: torch.optim.Adam(p, foreach=True)),
    **{
        scenario.__name__.replace("_", " "): scenario
        for scenario in (
            *(tied_weights, hooks, saved_tensor_hooks),
            *(gradient_accumulation_and_clipping, autocast, modes_in_turn, parametrized),
            *(autograd_function, partial_gradients, state_loaded_between_calls),
        )
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_is_eagers(name: str) -> None:
    assert_as_eager(SCENARIOS[name], VIRTUAL)
