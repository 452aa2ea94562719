"""After the rewrite, fake tensors of a normalization's statistics have the types of real ones."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule

import nimble_fx
from nimble_fx.rewrites.types_of_statistics import correct_types_of_statistics
from tests.support.schedules import aten_graph

aten = torch.ops.aten

NORMALIZATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "batch": lambda x, w, s: aten._native_batch_norm_legit_functional(
        x, w, w, s, s.abs(), True, 0.1, 1e-5
    )[:3],
    "batch without weights": lambda x, w, s: aten._native_batch_norm_legit_functional(
        x, None, None, s, s.abs(), True, 0.1, 1e-5
    )[:3],
    "batch without statistics": lambda x, w, s: aten._native_batch_norm_legit.no_stats(
        x, w, w, True, 0.1, 1e-5
    ),
    "batch of no weights and statistics": lambda x, w, s: aten._native_batch_norm_legit.no_stats(
        x, None, None, True, 0.1, 1e-5
    ),
    "batch with running statistics": lambda x, w, s: aten._native_batch_norm_legit_no_training(
        x, w, w, s, s.abs(), 0.1, 1e-5
    ),
    "group": lambda x, w, s: aten.native_group_norm(x, w, w, 2, 4, 9, 2, 1e-5),
    "layer": lambda x, w, s: aten.native_layer_norm(x.transpose(1, 3), [4], w, w, 1e-5),
}
HALF, SINGLE = (torch.bfloat16, torch.float16), torch.float32


@given(
    st.sampled_from(sorted(NORMALIZATIONS)),
    st.sampled_from([(half, dtype) for half in HALF for dtype in (half, SINGLE)] + [(SINGLE,) * 2]),
    st.sampled_from(
        [
            lambda value: value,
            torch.detach,
            lambda value: value.view(-1).detach() * 2,
            lambda value: value.exp().bfloat16() + 1,
        ]
    ),
)
def test_all_results_have_their_promised_types(
    name: str, dtypes: tuple[torch.dtype, torch.dtype], after: Callable[[Tensor], Tensor]
) -> None:
    x = torch.randn(2, 4, 3, 3, dtype=dtypes[0])
    weight, statistics = (torch.randn(4, dtype=dtypes[1]) for _ in range(2))

    def function(x: Tensor, weight: Tensor, statistics: Tensor) -> Any:
        image, *others = NORMALIZATIONS[name](x, weight, statistics)
        return [image, *(after(other) for other in others)]

    gm = correct_types_of_statistics(aten_graph(function, x, weight, statistics))
    assert types(gm(x, weight, statistics)) == promised_types(gm)


def types(values: Iterable[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(value.shape, value.dtype) for value in values]


def promised_types(gm: GraphModule) -> list[tuple[torch.Size, torch.dtype]]:
    outputs: Any = gm.graph.output_node().args[0]
    return types(node.meta["val"] for node in outputs)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_pytorch_promises_other_types(dtype: torch.dtype) -> None:
    """Else there would be nothing to correct."""
    x, weight = torch.randn(2, 4, 3, 3, dtype=dtype), torch.randn(4)
    gm = aten_graph(lambda x, w: NORMALIZATIONS["batch"](x, w, w), x, weight)
    assert types(gm(x, weight)) != promised_types(gm)


@torch.library.custom_op("nimble_statistics_test::count", mutates_args={"calls"})
def count(calls: Tensor) -> None:
    calls.add_(1)


class Counted(nn.Module):
    """Inductor's kernels cannot run its forward, because the operator writes to its argument."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        count(self.calls)
        y: Tensor = self.norm(x)
        return y


class Looked(nn.Module):
    """Inductor's kernels cannot run its backward, because its gradient is sparse."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.table = norm, nn.Embedding(50, 16, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.table.weight.sum(0).bfloat16().view(1, 4, 2, 2))
        return y * F.embedding(torch.arange(4), self.table.weight, sparse=True).mean()


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "frozen batch": lambda: nn.BatchNorm2d(4).eval(),
    "group": lambda: nn.GroupNorm(2, 4),
    "layer": lambda: nn.LayerNorm([2, 2]),
}


@pytest.mark.parametrize("kind", [Counted, Looked])
@pytest.mark.parametrize("name", sorted(NORMS))
def test_forward_and_backward_may_have_different_kernels(
    name: str, kind: Callable[[nn.Module], nn.Module]
) -> None:
    torch.manual_seed(0)
    model, eager, exact = (kind(NORMS[name]()) for _ in range(3))
    for other in (eager, exact):
        other.load_state_dict(model.state_dict())
    options: dict[str, Any] = {"kernels": "inductor", "on_fallback": "silent"}
    compiled = torch.compile(model, backend="nimble", options=options)
    x = torch.randn(3, 4, 2, 2).bfloat16()
    found = []
    for run, dtype in ((compiled, x.dtype), (eager, x.dtype), (exact.double(), torch.float64)):
        given = x.detach().to(dtype, copy=True).requires_grad_()
        run(given).double().square().sum().backward()
        assert given.grad is not None
        found.append(given.grad.double())
    (fallback,) = nimble_fx.fallbacks()
    assert fallback.program.endswith("(training)" if kind is Counted else "(backward)")
    ours, eagers, exacts = found
    assert (ours - exacts).abs().max() <= 2 * (eagers - exacts).abs().max() + 1e-3


@pytest.mark.parametrize("name", sorted(NORMS))
def test_a_saved_program_is_loaded(name: str, tmp_path: Path) -> None:
    norm, x = NORMS[name](), torch.randn(3, 4, 2, 2).bfloat16()
    with torch.no_grad():
        torch.compile(norm, backend="nimble")(x)
    (program,) = nimble_fx.programs()
    loaded = nimble_fx.load(program.save(tmp_path / "program.json"))
    assert loaded.graph == program.graph
