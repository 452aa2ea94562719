"""Processes and threads: a compiled function after a fork, in workers, in several threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.support.beside_eager import on_both_devices

pytestmark = pytest.mark.slow

TIMEOUT_S = 120


class Doubles(Dataset[Tensor]):
    """Samples that a compiled function makes."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        self.run = run

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Tensor:
        return self.run(torch.full((4,), float(i)))


def branches(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.sigmoid(x) * 2


def compiled(function: Any, options: dict[str, Any]) -> Any:
    return torch.compile(function, backend="nimble", options=options)


def succeeds_in_a_child(work: Callable[[], None]) -> bool:
    """Whether it comes to its end in a fork of this process, in time."""
    child = os.fork()
    if not child:
        code = 1
        try:
            import signal

            signal.alarm(TIMEOUT_S)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@on_both_devices
def test_a_fork_calls_what_its_parent_has_compiled(options: dict[str, Any]) -> None:
    run, x = compiled(branches, options), torch.randn(4)
    torch.testing.assert_close(run(x), branches(x))

    def work() -> None:
        torch.testing.assert_close(run(x + 1), branches(x + 1))
        torch.testing.assert_close(run(torch.ones(2, 3)), branches(torch.ones(2, 3)))

    assert succeeds_in_a_child(work)
    torch.testing.assert_close(run(x + 2), branches(x + 2))


@pytest.mark.skipif(
    torch.backends.cuda.is_built(),
    reason="PyTorch's CUDA builds run no such backward in a fork",
)
@on_both_devices
def test_a_fork_trains_what_its_parent_has_compiled(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run, x = compiled(model, options), torch.randn(3, 4)
    run(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def work() -> None:
        model.zero_grad()
        run(x).sum().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], expected)

    assert succeeds_in_a_child(work)


@on_both_devices
@pytest.mark.parametrize("warm", [True, False])
def test_workers_of_a_loader_call_a_compiled_function(warm: bool, options: dict[str, Any]) -> None:
    run = compiled(branches, options)
    if warm:
        run(torch.ones(4))
    loader = DataLoader(Doubles(run), 2, num_workers=2, timeout=TIMEOUT_S)
    expected = branches(torch.arange(6.0)[:, None].expand(6, 4))
    torch.testing.assert_close(torch.cat(list(loader)), expected)


@on_both_devices
def test_threads_compile_and_call_models_of_their_own(options: dict[str, Any]) -> None:
    models = [nn.Sequential(nn.Linear(4, 3 + i), nn.ReLU()) for i in range(4)]

    def train(model: nn.Module) -> list[Tensor]:
        run = compiled(model, options)
        grads = []
        for i in range(4):
            model.zero_grad()
            run(torch.full((2, 4), 1.0 + i)).sum().backward()
            grads += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return grads

    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(train, models))
    for model, found in zip(models, ours, strict=True):
        expected = []
        for i in range(4):
            model.zero_grad()
            model(torch.full((2, 4), 1.0 + i)).sum().backward()
            expected += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        torch.testing.assert_close(found, expected)


@on_both_devices
def test_the_backward_may_run_in_another_thread(options: dict[str, Any]) -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    run = compiled(model, options)
    losses = [run(x * i).square().sum() for i in (1, 2)]
    with ThreadPoolExecutor(1) as pool:
        for loss in losses:
            pool.submit(loss.backward).result()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    sum(model(x * i).square().sum() for i in (1, 2)).backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])
