"""Products that are only added are computed where they are added, with the same values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nimble_fx.rewrites import fuse_multiply_add as module
from nimble_fx.rewrites.fuse_multiply_add import fuse_multiply_add
from nimble_fx.rewrites.hoist_weights import fixed_nodes, unshared_weights
from nimble_fx.rewrites.live_memory import MAX_GROWTH, LiveMemory
from tests.support.accuracy import assert_as_accurate
from tests.support.inference_graphs import inference_graph

aten = torch.ops.aten


class Of(nn.Module):
    """A function of the inputs and of a weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.tensor(0.3))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, self.weight)


def rewritten(model: nn.Module, *inputs: Tensor) -> list[Any]:
    """The operators after the rewrite, which computes the same in hardly more memory."""
    graph = inference_graph(model, *inputs)
    weights = unshared_weights(graph.gm, graph.static)
    gm = fuse_multiply_add(graph.gm, fixed_nodes(graph.gm, weights))
    gm.graph.lint()
    with torch.no_grad():
        assert_as_accurate(model, inputs, gm(*graph.arguments))
    before, after = (LiveMemory(each.graph).least_peak for each in (graph.gm, gm))
    assert after <= (1 + MAX_GROWTH) * before
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


X, Y, Z = (torch.randn(6, 5) for _ in range(3))
ROW = torch.randn(5)

FUSED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "a weight's": (lambda x, y, z, w: y + w * x, [aten.addcmul.default]),
    "on the left": (lambda x, y, z, w: x * z + y, [aten.addcmul.default]),
    "subtracted": (lambda x, y, z, w: y - x * z, [aten.addcmul.default]),
    "a huge number's": (lambda x, y, z, w: y - x * -(2**63), [aten.add.Tensor]),
    "a number's": (lambda x, y, z, w: 0.9 * x + y, [aten.add.Tensor]),
    "a number's, subtracted": (lambda x, y, z, w: y - x * 2, [aten.add.Tensor]),
    "a broadcast factor": (
        lambda x, y, z, w: y + x[0] * z,
        [aten.select.int, aten.addcmul.default],
    ),
    "a broadcast addend": (
        lambda x, y, z, w: y[0] + x * z,
        [aten.select.int, aten.addcmul.default],
    ),
    "two": (lambda x, y, z, w: x * w + y * z, [aten.mul.Tensor, aten.addcmul.default]),
    "a chain": (
        lambda x, y, z, w: y + x * w + z * w,
        [aten.addcmul.default, aten.addcmul.default],
    ),
    "a sum as factor": (
        lambda x, y, z, w: x + (y + x * z) * w,
        [aten.addcmul.default, aten.addcmul.default],
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_product_and_its_sum_are_one_operator(name: str) -> None:
    function, expected = FUSED[name]
    assert rewritten(Of(function), X, Y, Z) == expected


LEFT_ALONE: dict[str, Callable[..., Any]] = {
    "a factor written": lambda x, y, z, w: (lambda product: (x.add_(1), product + y))(x * z)[1],
    "read twice": lambda x, y, z, w: (lambda product: (product + y) * product)(x * z),
    "returned": lambda x, y, z, w: (lambda product: (product, product + y))(x * z),
    "squared sum": lambda x, y, z, w: (lambda product: product + product)(x * z),
    "subtracted from": lambda x, y, z, w: x * z - y,
    "scaled": lambda x, y, z, w: torch.add(y, x * z, alpha=2),  # 2 * x could be infinite
    "scaled addend": lambda x, y, z, w: torch.add(x * z, y, alpha=2),
    "a number added": lambda x, y, z, w: x * z + 1,
    "other types": lambda x, y, z, w: y + x.double() * z.double(),
    "an integer factor": lambda x, y, z, w: y + x.long() * z,
    "half precision": lambda x, y, z, w: y.bfloat16() + x.bfloat16() * z.bfloat16(),
    "complex": lambda x, y, z, w: torch.complex(x, y) + z * torch.complex(y, x),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_others_stay_two_operators(name: str) -> None:
    graph = inference_graph(Of(LEFT_ALONE[name]), X.clone(), Y, Z)
    assert fuse_multiply_add(graph.gm, set()) is graph.gm


def test_what_depends_on_weights_alone_is_computed_outside_of_the_calls() -> None:
    graph = inference_graph(Of(lambda x, w: x + (w * w + 1) * x + (w + w * w)), X)
    fixed = fixed_nodes(graph.gm, unshared_weights(graph.gm, graph.static))
    fused = fuse_multiply_add(graph.gm, fixed)
    assert fixed_nodes(fused, unshared_weights(fused, graph.static)).keys() >= {
        node for node in fused.graph.nodes if node.name in {each.name for each in fixed}
    }
    assert [node.target for node in fused.graph.nodes].count(aten.addcmul.default) == 1


numbers = st.one_of(st.integers(-3, 3), st.floats(-2, 2))


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., Any]:
    """Sums and products of earlier values, in any order."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["mul", "mul", "add", "sub", "scale"]),
                st.integers(0, 20),
                st.integers(0, 20),
                numbers,
            ),
            min_size=2,
            max_size=12,
        )
    )

    def function(*values: Tensor) -> Tensor:
        known = list(values)
        for kind, i, j, number in steps:
            a, b = known[i % len(known)], known[j % len(known)]
            match kind:
                case "mul":
                    known.append(a * b)
                case "add":
                    known.append(torch.add(a, b, alpha=number) if i % 3 == 0 else a + b)
                case "sub":
                    known.append(a - b)
                case _:
                    known.append(a * number)
        return known[-1] + known[-2]

    return function


@settings(deadline=None, max_examples=60)
@given(functions(), st.sampled_from([torch.float32, torch.float64]))
def test_any_sums_and_products_have_the_same_values(
    function: Callable[..., Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    inputs = (torch.rand(3, 4), torch.rand(4), torch.rand(3, 1), torch.rand(()))
    rewritten(Of(function).to(dtype), *(x.to(dtype) for x in inputs))


def test_more_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROWTH", -1)
    graph = inference_graph(Of(lambda x, y, w: y + w * x), X, Y)
    assert fuse_multiply_add(graph.gm, set()) is graph.gm
