"""Weights that are folded on a GPU: changes that PyTorch counts are noticed, on any stream."""

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.accuracy import assert_as_accurate

pytestmark = pytest.mark.gpu

OPTIONS: dict[str, Any] = {"fold_weights": True, "policy": "nimble", "on_fallback": "error"}


class Branches(nn.Module):
    """Two convolutions with batch normalization, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.two, self.other = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.one(x))) + torch.sigmoid(self.other(self.two(x)))


def branches() -> Branches:
    model = Branches().cuda().eval()
    for norm in (model.norm, model.other):
        nn.init.uniform_(norm.running_mean)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    return model


def image() -> Tensor:
    return torch.randn(2, 3, 8, 8, device="cuda")


def step(model: Branches, **options: Any) -> None:
    """A step of an optimizer, in eager."""
    optimizer = torch.optim.Adam(model.parameters(), 0.1, **options)
    with torch.enable_grad():
        model(image()).sum().backward()
    optimizer.step()


CHANGES: dict[str, Callable[[Branches], Any]] = {
    "in place": lambda m: m.one.weight.mul_(2),
    "a buffer": lambda m: m.norm.running_var.add_(1),  # type: ignore[union-attr]
    "another in its place": lambda m: setattr(m.two, "weight", nn.Parameter(m.two.weight * 2)),
    "loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict(
        {k: v * 2 for k, v in m.state_dict().items()}, assign=True
    ),
    "an optimizer": step,
    "a fused optimizer": lambda m: step(m, fused=True),
    "moved": lambda m: m.cpu().cuda(),
}


def test_changes_that_are_counted_are_noticed() -> None:
    model = branches()
    compiled = torch.compile(model, backend="nimble", options=OPTIONS)
    with torch.no_grad():
        for change in (lambda m: m, *CHANGES.values()):
            change(model)
            for _ in range(2):
                x = image()
                assert_as_accurate(model, (x,), [compiled(x)])
    (program,) = nimble_fx.programs()
    assert "batch_norm" not in program.source
    assert program.status.frozen


def test_a_capture_of_the_callers_has_no_bound_program_whose_folded_weights_it_could_outlive() -> (
    None
):
    model, x = branches(), image()
    compiled = torch.compile(model, backend="nimble", options=OPTIONS)
    with torch.no_grad():
        expected = compiled(x)
        bound = nimble_fx.programs()[-1].bind(model)
        with (
            pytest.raises(nimble_fx.UnsupportedError, match="compile with fold_weights=False"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            bound(x)
        assert torch.equal(bound(x)[0], expected)


def test_so_are_those_of_training_by_the_compiled_model() -> None:
    model = branches()
    compiled = torch.compile(model, backend="nimble", options={"fold_weights": True})
    for _ in range(3):
        model.train()
        compiled(image()).sum().backward()
        model.eval()
        with torch.no_grad():
            x = image()
            assert_as_accurate(model, (x,), [compiled(x)])


@pytest.mark.parametrize("freeze", [True, False])
def test_calls_on_several_streams_read_what_one_has_computed(freeze: bool) -> None:
    model, expected = branches(), list[Tensor]()
    compiled = torch.compile(model, backend="nimble", options=OPTIONS | {"freeze": freeze})
    streams: Any = [torch.cuda.Stream() for _ in range(3)]
    images, results = [image() for _ in range(9)], list[Tensor]()
    torch.cuda.synchronize()
    with torch.no_grad():
        for i, x in enumerate(images):
            with torch.cuda.stream(streams[i % 3]):
                if i == 5:
                    torch.cuda.synchronize()
                    model.one.weight.mul_(2)
                results.append(compiled(x))
                expected.append(copy.deepcopy(model)(x))
    torch.cuda.synchronize()
    torch.testing.assert_close(results, expected)


def test_a_capture_of_the_users_reads_the_weights_themselves() -> None:
    model, x = branches(), image()
    compiled = torch.compile(model, backend="nimble", options=OPTIONS)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        compiled(x)
        with torch.cuda.graph(graph):
            result = compiled(x)
        model.one.weight.mul_(2)
        compiled(x)  # which frees what was folded before
        graph.replay()
        torch.testing.assert_close(result, model(x))


def test_released_weights_free_their_memory() -> None:
    model = branches()
    eager, x = copy.deepcopy(model), image()
    compiled = nimble_fx.compile(model, x, guards=False, release_weights=True)
    assert {name for name, value in model.named_parameters() if not value.numel()} == {
        *("one.weight", "norm.weight", "norm.bias"),
        *("two.weight", "two.bias", "other.weight", "other.bias"),
    }
    for _ in range(3):
        x = image()
        assert_as_accurate(eager, (x,), [compiled(x)])


def test_their_memory_comes_back_with_the_model() -> None:
    def run(n_changes: int) -> None:
        model = branches()
        compiled = torch.compile(model, backend="nimble", options=OPTIONS)
        with torch.no_grad():
            for _ in range(n_changes):
                compiled(image())
                model.one.weight.mul_(2)

    used = []
    for n_changes in (1, 1, 4):
        run(n_changes)
        torch.compiler.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[1] == used[2]


FORMATS: dict[str, tuple[nn.Module, torch.dtype]] = {
    "one pixel of a filter": (nn.Sequential(nn.Conv2d(4, 6, 1), nn.ReLU6()), torch.float32),
    "doubles": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()), torch.float64),
    "depthwise": (nn.Conv2d(4, 4, 1, groups=4), torch.float32),
    "one channel": (nn.Sequential(nn.Conv2d(4, 1, 1), nn.Conv2d(1, 4, 1)), torch.float32),
    "volumes": (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Unflatten(1, (3, 2)), nn.Conv3d(3, 2, 1)),
        torch.float32,
    ),
}


@pytest.mark.parametrize(("model", "dtype"), FORMATS.values(), ids=FORMATS)
def test_a_plan_that_is_saved_has_the_formats_of_the_gpus_convolutions(
    model: nn.Module, dtype: torch.dtype, tmp_path: Path
) -> None:
    x = torch.randn(2, 4, 6, 6, dtype=dtype)
    plan = nimble_fx.plan(model.eval().to(dtype), x, device="h100", fold_weights=True)
    plan.save(tmp_path / "plan.json")
    with torch.backends.cudnn.flags(enabled=True):  # whose formats are those of a plan
        assert nimble_fx.load(tmp_path / "plan.json").graph == plan.graph
