"""A rewritten program with different results raises an error in its first call."""

import copy
import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.rewrites.folding import fold_batch_norm
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime, with_inductor_kernels
from nimble_fx.runtime.compared_values import compared_once, is_comparable
from tests.support.eager import assert_same
from tests.support.inference_graphs import inference_graph
from tests.support.models import CASES

COMPARED: dict[str, Any] = {"fold_weights": True, "verify": "values"}


class Noisy(nn.Module):
    """Has random numbers, a type of its own, several results and a number among them."""

    def forward(self, x: Tensor) -> tuple[Tensor, int, Tensor]:
        noise = torch.rand(3, dtype=torch.float32)
        return x.to(torch.bfloat16).float() + noise, len(x), (x > 0).long()


def test_the_same_values_pass_and_random_numbers_are_drawn_once() -> None:
    graph, x = inference_graph(Noisy(), torch.randn(3)), torch.randn(3)
    run = compared_once(lambda args: graph.gm(*args), graph.gm, "noisy")
    torch.manual_seed(0)
    expected = Noisy()(x)[0]
    torch.manual_seed(0)
    assert torch.equal(run([x])[0], expected)


NAN = float("nan")


@pytest.mark.parametrize(
    ("result", "is_right"),
    [
        ([NAN, 2.0, 2.0], True),
        ([NAN, 2.0, 1e6], False),
        ([0.0, 2.0, 2.0], False),
        ([NAN, NAN, 2.0], False),
    ],
    ids=str,
)
def test_beside_nan_other_values_are_compared_too(result: list[float], is_right: bool) -> None:
    gm = make_fx(lambda x: [x * 2])(torch.ones(3))
    run = compared_once(lambda args: [torch.tensor(result)], gm, "double")
    with nullcontext() if is_right else pytest.raises(nimble_fx.RewriteError):
        run([torch.tensor([NAN, 1.0, 1.0])])


def test_once_compared_the_original_graph_is_freed() -> None:
    gm = make_fx(lambda x: [x.relu()])(torch.ones(3))
    graph, run = weakref.ref(gm.graph), compared_once(lambda args: [args[0].relu()], gm, "relu")
    del gm
    for _ in range(2):
        assert_same(run([torch.ones(3)]), [torch.ones(3)])
    gc.collect()
    assert graph() is None


@pytest.mark.gpu
def test_on_a_gpu_too() -> None:
    def function(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    x = torch.randn(3, device="cuda")
    compiled = torch.compile(function, backend="nimble", options={"verify": "values"})
    with torch.no_grad():
        for _ in range(3):
            torch.manual_seed(0)
            expected = function(x), torch.rand(2, device="cuda")
            torch.manual_seed(0)
            torch.testing.assert_close((compiled(x), torch.rand(2, device="cuda")), expected)


@pytest.mark.parametrize("wrong", [lambda y: y + 1e-2, lambda y: y * torch.nan, lambda y: y[:2]])
def test_other_values_are_an_error_until_they_are_right(wrong: Any) -> None:
    graph, x = inference_graph(nn.Linear(4, 4), torch.randn(3, 4)), torch.randn(3, 4)
    arguments = [x if value.shape == x.shape else value for value in graph.arguments]
    run = compared_once(lambda args: [wrong(graph.gm(*args)[0])], graph.gm, "linear")
    for _ in range(2):
        with pytest.raises(nimble_fx.RewriteError, match=r"output 0 of linear .*fold_weights"):
            run(list(arguments))


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30])
def test_large_values_may_be_rounded_otherwise_but_not_be_others(scale: float) -> None:
    graph, x = inference_graph(nn.ReLU(), torch.ones(9)), scale * torch.arange(9.0)
    rounded = compared_once(lambda args: [args[0] + scale * 1e-6], graph.gm, "relu")
    assert torch.equal(rounded([x])[0], x + scale * 1e-6)
    for other in (lambda y: y * 1.01, lambda y: y + scale * 1e-2):
        wrong = compared_once(lambda args, other=other: [other(args[0])], graph.gm, "relu")  # type: ignore[misc]
        with pytest.raises(nimble_fx.RewriteError):
            wrong([x])


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros_like, lambda y: y / 2, lambda y: y.flip(-1), lambda y: 1 / y.shape[-1] + 0 * y],
)
def test_small_values_may_not_be_others(wrong: Any) -> None:
    class Probabilities(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    x = torch.randn(2, 50_000)
    graph = inference_graph(Probabilities(), x)
    with pytest.raises(nimble_fx.RewriteError, match="off float64"):
        compared_once(lambda args: [wrong(graph.gm(*args)[0])], graph.gm, "probabilities")([x])
    compared_once(lambda args: [graph.gm(*args)[0] * (1 + 1e-6)], graph.gm, "probabilities")([x])


def test_what_rounding_leaves_of_values_that_cancel_may_be_rounded_otherwise() -> None:
    class Cancels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 1.1) - x - 1.1

    x = torch.randn(100)
    graph = inference_graph(Cancels(), x)
    run = compared_once(lambda args: [graph.gm(*args)[0] * -1], graph.gm, "cancels")
    assert torch.equal(run([x])[0], -Cancels()(x))


@pytest.mark.parametrize("name", CASES)
def test_models_with_folded_weights_pass(name: str) -> None:
    model, inputs = CASES[name].model().eval(), CASES[name].inputs()
    theirs, eager = copy.deepcopy(inputs), copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble", options=COMPARED)
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(0)
            ours = compiled(*inputs)
            torch.manual_seed(0)
            torch.testing.assert_close(ours, eager(*theirs), rtol=1e-4, atol=1e-5)


def test_other_values_of_inductors_kernels_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(gm: GraphModule, predicted_us: PredictedTime | None) -> GraphModule:
        made = with_inductor_kernels(gm, predicted_us)
        if is_wrong:
            (product,) = made.graph.find_nodes(
                op="call_function", target=torch.ops.aten.addmm.default
            )
            product.update_kwarg("alpha", 2)
        return made

    monkeypatch.setattr("nimble_fx.this_machine.with_inductor_kernels", wrong)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    for is_wrong in (False, True):
        torch.compiler.reset()
        options = COMPARED | {"kernels": "inductor"}
        compiled = torch.compile(model, backend="nimble", options=options)
        found = pytest.raises(nimble_fx.RewriteError, match=r"output 0 of .*kernels='aten'")
        with torch.no_grad(), found if is_wrong else nullcontext():
            compiled(torch.randn(2, 4))


def test_a_defect_in_a_rewrite_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(pair: Any, gm: Any, target: Any, *args: Any) -> Any:
        is_scale = target is torch.ops.aten.rsqrt.default
        return original(pair, gm, torch.ops.aten.sqrt.default if is_scale else target, *args)

    original = fold_batch_norm._Pair._call
    monkeypatch.setattr(fold_batch_norm._Pair, "_call", wrong)
    norm = nn.BatchNorm2d(4)
    nn.init.constant_(norm.running_var, 4.0)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm).eval()
    x = torch.randn(1, 3, 5, 5)
    with torch.no_grad():
        torch.compile(model, backend="nimble")(x)
        torch.compiler.reset()
        compiled = torch.compile(model, backend="nimble", options=COMPARED)
        with pytest.raises(nimble_fx.RewriteError):
            compiled(x)


def test_a_defect_is_found_where_no_weights_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(gm: GraphModule) -> GraphModule:
        (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
        node.target = torch.ops.aten.neg.default
        gm.recompile()
        return gm

    monkeypatch.setattr("nimble_fx.compiler.simplify_embedding_bags", wrong)
    options: dict[str, Any] = {"fold_weights": False, "verify": "values"}
    compiled = torch.compile(torch.relu, backend="nimble", options=options)
    with torch.no_grad(), pytest.raises(nimble_fx.RewriteError):
        compiled(torch.ones(4))


def spectral(x: Tensor) -> Tensor:
    weight = torch.ones(4, 4, 5, dtype=torch.complex64)
    return torch.fft.irfft(torch.einsum("bix,iox->box", torch.fft.rfft(x), weight), 8)


NO_FLOAT64: dict[str, Any] = {
    "complex weights": (spectral, torch.ones(2, 4, 8)),
    "quantized": (
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.full((8,), 0.1), torch.zeros(8), 1, -128, 127
        ),
        torch.randn(4, 8),
    ),
    "float8": (lambda x: x.to(torch.float8_e4m3fn), torch.randn(4, 8)),
    "NaN": (lambda x: x.log(), -torch.ones(3)),
}


@pytest.mark.parametrize("name", NO_FLOAT64)
def test_what_is_the_same_needs_no_float64(name: str) -> None:
    function, x = NO_FLOAT64[name]
    compiled = torch.compile(function, backend="nimble", options={"verify": "values"})
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(x).float(), function(x).float(), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("is_wrong", [False, True])
def test_where_float64_is_not_taken_the_graph_itself_is_compared_with(is_wrong: bool) -> None:
    function, x = NO_FLOAT64["quantized"]
    graph = inference_graph(Function(function), x)
    other = 1e-2 if is_wrong else 1e-7
    run = compared_once(lambda args: [graph.gm(*args)[0] + other], graph.gm, "quantized")
    with pytest.raises(nimble_fx.RewriteError) if is_wrong else nullcontext():
        run([x])


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def bits_of(x: Tensor) -> Tensor:
    return x.relu().half().view(torch.int16)


def written(x: Tensor) -> Tensor:
    return x.add_(1).relu()


def branched(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.relu, torch.sigmoid, (x,))


def test_what_cannot_be_run_twice_or_in_float64_is_not_compared() -> None:
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("seen(Tensor x) -> Tensor")
        library.impl("seen", Tensor.clone, "CompositeExplicitAutograd")

        def custom(x: Tensor) -> Any:
            return torch.ops.nimble_tests.seen(x).relu()

        for function in (bits_of, written, custom, branched, torch.empty_like):
            assert not is_comparable(make_fx(function)(torch.ones(3)))
    assert is_comparable(make_fx(lambda x: x.relu().view(-1))(torch.ones(3)))
