"""The cuBLAS workspaces of each captured stream, on PyTorch's own allocator."""

from contextlib import suppress
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.cuda import Cuda
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.simulation.memory_model import footprint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(torch.backends.cuda, "cublas_workspace_size"),
        reason="this PyTorch cannot limit workspaces",
    ),
]


class Branches(nn.Module):
    """Linear layers side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [branch(x).relu() for branch in self.branches]


def captured(width: int, policy: str) -> tuple[TaskGraph, tuple[int, ...]]:
    """The schedule, and the bytes of each stream while the capture lives."""
    torch.compiler.reset()
    model, x = Branches(width).cuda(), torch.randn(8, width, device="cuda")
    compiled = torch.compile(model, backend="nimble", options={"policy": policy})
    with torch.no_grad():
        compiled(x)
    program = nimble_fx.programs()[-1]
    return program.graph, program.status.nbytes


@pytest.mark.parametrize(("width", "policy"), list(product([16, 1024], ["serial", "nimble"])))
def test_a_capture_owns_what_the_model_of_memory_says(width: int, policy: str) -> None:
    graph, nbytes = captured(width, policy)
    workspace = torch.backends.cuda.cublas_workspace_size()
    assert sum(nbytes) == footprint(graph, workspace).reserved


def test_small_products_need_no_large_workspace_for_each_stream() -> None:
    assert captured(16, "nimble")[1] == (2 << 20,) * 6
    assert min(captured(1024, "nimble")[1]) >= 20 << 20


@pytest.mark.parametrize("users", [None, 16 << 10, 4 << 20])
def test_the_users_size_is_kept_and_never_exceeded(users: int | None) -> None:
    default = torch.backends.cuda.cublas_workspace_size()
    if users is not None:
        torch.backends.cuda.cublas_workspace_size(users)
    captured(16, "nimble")
    assert torch.backends.cuda.cublas_workspace_size() == (users or default)


@pytest.mark.parametrize("limit", [None, 1 << 20, 1 << 30])
def test_a_limit_holds_within_alone_and_raises_no_users_size(limit: int | None) -> None:
    size = torch.backends.cuda.cublas_workspace_size
    users = size()
    with suppress(ZeroDivisionError), Cuda(torch.device("cuda", 0)).limited_workspaces(limit):
        assert size() == min(users, limit or users)
        raise ZeroDivisionError
    assert size() == users
