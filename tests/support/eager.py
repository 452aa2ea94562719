"""Compiled models against eager: outputs, gradients, mutated inputs, state, step by step."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.support.models import Case


def assert_same(ours: Any, expected: Any) -> None:
    """The same structure, the same numbers, and equal things that are not tensors."""
    left, spec = pytree.tree_flatten(ours)
    right, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec
    for one, other in zip(left, right, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def twins(case: Case, train: bool, device: str = "cpu") -> tuple[nn.Module, nn.Module]:
    """A model and a copy of it, in training or evaluation mode."""
    model = case.model().to(device).train(train)
    return model, copy.deepcopy(model)


def call(model: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """The model's outputs; random numbers are the same in each call."""
    torch.manual_seed(1)
    return model(*inputs)


def assert_inference_is_eagers(
    case: Case, options: dict[str, Any] | None = None, n_calls: int = 3, device: str = "cpu"
) -> None:
    """Compiles the case's model and calls it beside eager."""
    model, eager = twins(case, train=False, device=device)
    compiled = torch.compile(model, backend="nimble", options=options)
    assert_calls_are_eagers(compiled, model, eager, case, n_calls, device)


def assert_calls_are_eagers(
    compiled: Callable[..., Any],
    model: nn.Module,
    eager: nn.Module,
    case: Case,
    n_calls: int = 3,
    device: str = "cpu",
) -> None:
    """Calls a compiled model, and beside it a twin of the model in eager, without gradients."""
    for _ in range(n_calls):
        ours = pytree.tree_map_only(Tensor, lambda x: x.to(device), case.inputs())
        theirs = copy.deepcopy(ours)
        with torch.no_grad():
            assert_same(call(compiled, ours), call(eager, theirs))
        assert_same(ours, theirs)
        assert_same(dict(model.state_dict()), dict(eager.state_dict()))


def assert_training_is_eagers(
    case: Case, n_steps: int = 3, device: str = "cpu", options: dict[str, Any] | None = None
) -> None:
    """Compiles the case's model and trains it beside eager."""
    model, eager = twins(case, train=True, device=device)
    compiled = torch.compile(model, backend="nimble", options=options)
    assert_steps_are_eagers(compiled, model, eager, case, n_steps, device)


def assert_steps_are_eagers(
    compiled: Callable[..., Any],
    model: nn.Module,
    eager: nn.Module,
    case: Case,
    n_steps: int = 3,
    device: str = "cpu",
) -> None:
    """Trains a compiled model, and beside it a twin of the model in eager."""
    for _ in range(n_steps):
        inputs, results = tuple(x.to(device) for x in case.inputs()), []
        for net, run in ((model, compiled), (eager, eager)):
            outputs = call(run, inputs)
            net.zero_grad()
            loss: Any = sum(leaf.square().sum() for leaf in pytree.tree_leaves(outputs))
            loss.backward()
            results.append((outputs, [p.grad for p in net.parameters()]))
            torch.optim.SGD(net.parameters(), 0.01).step()
        assert_same(*results)
        assert_same(dict(model.state_dict()), dict(eager.state_dict()))
