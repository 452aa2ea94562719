"""The two processes of the distributed scenarios; a process group of gloo."""

import copy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
OPTIONS: dict[str, Any] = {"policy": "nimble", "on_fallback": "silent"}


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x)) * torch.sigmoid(self.first(x))
        result: Tensor = self.last(hidden)
        return result


def compiled(module: Any) -> Any:
    return torch.compile(module, backend="nimble", options=OPTIONS)


def trained(run: Any, net: nn.Module, rank: int) -> list[Tensor]:
    """The parameters after two steps on the rank's own data."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        run(torch.randn(3, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    return [whole(p).detach().clone() for p in net.parameters()]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def ddp_outside(rank: int) -> None:
    """`DistributedDataParallel` of a compiled model."""
    net = Net()
    twin = copy.deepcopy(net)
    expected = trained(DistributedDataParallel(twin), twin, rank)
    found = trained(DistributedDataParallel(compiled(net)), net, rank)
    torch.testing.assert_close(found, expected)


def ddp_inside(rank: int) -> None:
    """A compiled `DistributedDataParallel`."""
    net = Net()
    twin = copy.deepcopy(net)
    expected = trained(DistributedDataParallel(twin), twin, rank)
    found = trained(compiled(DistributedDataParallel(net)), net, rank)
    torch.testing.assert_close(found, expected)


def fsdp(rank: int) -> None:
    """`fully_shard` layer by layer, then compiled."""
    net = Net()
    twin = copy.deepcopy(net)
    mesh = init_device_mesh("cpu", (WORLD,))
    for module in (net, twin):
        for layer in (module.first, module.last, module):
            fully_shard(layer, mesh=mesh)
    expected = trained(twin, twin, rank)
    found = trained(compiled(net), net, rank)
    torch.testing.assert_close(found, expected)


def dtensor(rank: int) -> None:
    """A function of sharded tensors."""
    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(0)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    x = distribute_tensor(a, mesh, [Shard(0)])
    w = distribute_tensor(b, mesh, [Replicate()]).requires_grad_()

    def run(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w) + torch.sigmoid(x) * 2

    ours, expected = compiled(run)(x, w), run(x, w)
    torch.testing.assert_close(whole(ours), whole(expected))
    grads = [torch.autograd.grad(whole(y).sum(), w)[0] for y in (ours, expected)]
    torch.testing.assert_close(whole(grads[0]), whole(grads[1]))


def tensor_parallel(rank: int) -> None:
    """A module whose layers are split over ranks."""
    mesh = init_device_mesh("cpu", (WORLD,))
    net = Net()
    twin = copy.deepcopy(net)
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    for module in (net, twin):
        parallelize_module(module, mesh, plan)
    found, expected = (trained(run, m, 0) for run, m in ((compiled(net), net), (twin, twin)))
    torch.testing.assert_close(found, expected)


def collectives(rank: int) -> None:
    """A function that reduces over ranks itself."""

    def by_functions(x: Tensor) -> Tensor:
        y = functional.all_reduce(torch.relu(x) + 1, "sum", dist.group.WORLD)  # type: ignore[arg-type]
        return y * 2 + torch.sigmoid(x)

    x = torch.full((4,), rank + 1.0)
    torch.testing.assert_close(compiled(by_functions)(x), by_functions(x))


SCENARIOS: dict[str, Callable[[int], None]] = {
    scenario.__name__: scenario
    for scenario in (ddp_outside, ddp_inside, fsdp, dtensor, tensor_parallel, collectives)
}


def work(rank: int, directory: str) -> None:
    """Runs all scenarios; what each raised is left in a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(  # type: ignore[attr-defined]
        f"{directory}/store", WORLD
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    for name, scenario in SCENARIOS.items():
        torch.compiler.reset()
        torch.manual_seed(0)
        said = ""
        try:
            scenario(rank)
        except Exception:
            said = traceback.format_exc()
        Path(directory, f"{name}.{rank}").write_text(said)
        dist.barrier()
    dist.destroy_process_group()
