"""Checkpointed regions draw eager's random numbers, once, and both their graphs are scheduled."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.utils.checkpoint import checkpoint

import nimble_fx
from nimble_fx.ir.task_graph import ref_names
from nimble_fx.rewrites.checkpointed_draws import keep_draws
from nimble_fx.torch_internals.names import lookup
from tests.support.bits import assert_same_bits

run_and_save: Any = lookup("torch._prims.rng_prims.run_and_save_rng_state")
run_again: Any = lookup("torch._prims.rng_prims.run_with_rng_state")
checkpointed: Any = partial(checkpoint, use_reentrant=False)


def attention(x: Tensor, dropout: float) -> Tensor:
    heads = x[None, None]
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout)[0, 0]


def with_its_mask(x: Tensor) -> Tensor:
    dropped, mask = torch.native_dropout(x, 0.25, True)
    return dropped + mask


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x * 2, 0.3, inplace=True),
    "dropout of everything": lambda x: torch.native_dropout(x, 1.0, True)[0] + x,
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout that is off": lambda x: torch.native_dropout(x, 0.3, False)[0],
    "dropout and its mask": with_its_mask,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "attention": lambda x: attention(x, 0.0),
    "attention with dropout": lambda x: attention(x, 0.4),
    "uniform": lambda x: x * torch.rand_like(x),
    "normal": lambda x: x * torch.normal(x, 1.0),
    "Bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "Bernoulli by a constant": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "Gumbel": lambda x: x * F.gumbel_softmax(x, hard=True),
    "permutation": lambda x: x[torch.randperm(x.shape[0])],
    "tanh": torch.tanh,
    "square": lambda x: x * x,
    "product": lambda x: x @ x.mT,
}
REGIONS: dict[str, Callable[..., Tensor]] = {
    "plain": lambda run, x: run(x),
    "checkpointed": checkpointed,
    "nested": lambda run, x: checkpointed(partial(checkpointed, run), x),
}


def program(regions: Sequence[tuple[str, Sequence[str]]]) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that runs one region after another."""

    def operators(names: Sequence[str], x: Tensor) -> Tensor:
        for name in names:
            x = OPERATORS[name](x)
        return x

    def run(x: Tensor, weight: Tensor) -> Tensor:
        x = x @ weight
        for kind, names in regions:
            x = REGIONS[kind](partial(operators, names), x)
        return x

    return run


def seeded(run: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result, gradients, and the generator's state after the forward and the backward."""
    torch.manual_seed(0)
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = run(*leaves)
    states = [torch.get_rng_state()]
    (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
    return [result, *(x.grad for x in leaves if x.grad is not None), *states, torch.get_rng_state()]


DEVICES: list[dict[str, Any]] = [
    {"kernels": "aten"},
    {"device": "virtual", "policy": "nimble"},
    {"device": "virtual", "policy": "nimble", "freeze": False},
]


@pytest.mark.slow
@settings(max_examples=12)
@given(
    regions=st.lists(
        st.tuples(
            st.sampled_from(sorted(REGIONS)),
            st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=3,
    ),
    options=st.sampled_from(DEVICES),
    dynamic=st.booleans(),
)
def test_results_gradients_and_generator_are_eagers(
    regions: list[tuple[str, list[str]]],
    options: dict[str, Any],
    dynamic: bool,
) -> None:
    torch.compiler.reset()
    run = program(regions)
    options = {"on_fallback": "error"} | options
    compiled = torch.compile(run, backend="nimble", options=options, dynamic=dynamic)
    for n in (4, 5):
        inputs = torch.randn(n, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
        for ours, theirs in zip(seeded(compiled, *inputs), seeded(run, *inputs), strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.gpu
def test_on_a_gpu_draws_are_those_of_eager_and_captured() -> None:
    def region(x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(F.dropout(x, 0.3)), 0.5)

    def run(x: Tensor) -> Tensor:
        return checkpointed(region, checkpointed(region, x).exp())

    compiled = torch.compile(run, backend="nimble", options={"on_fallback": "error"})
    for _ in range(3):
        x = torch.randn(64, device="cuda")
        assert_same_bits(drawn_on_gpu(compiled, x), drawn_on_gpu(run, x))
    assert len(nimble_fx.programs()) == 2


def drawn_on_gpu(run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The result, the gradient, and the state of the GPU's generator after both."""
    torch.cuda.manual_seed(0)
    x = x.clone().requires_grad_()
    result = run(x)
    (grad,) = torch.autograd.grad(result.square().sum(), x)
    return [result.detach(), grad, torch.cuda.get_rng_state()]


@settings(max_examples=5)
@given(p=st.floats(0, 1))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_dropout_by_its_mask_has_the_same_bits(dtype: torch.dtype, p: float) -> None:
    torch.compiler.reset()
    x = torch.tensor([0.1, -3.0, 1e4, float("inf"), float("nan"), 1e-7] * 4, dtype=dtype)
    run = partial(checkpointed, lambda x: torch.native_dropout(x, p, True)[0].sin())
    compiled = torch.compile(run, backend="nimble", options={"kernels": "aten"})
    assert_same_bits(seeded(compiled, x), seeded(run, x))


def test_a_dropout_that_is_off_multiplies_by_nothing() -> None:
    run = program([("checkpointed", ["dropout that is off", "square"])])
    inputs = torch.randn(4, 4), torch.randn(4, 4)
    compiled = torch.compile(run, backend="nimble", options={"kernels": "aten"})
    assert_same_bits(seeded(compiled, *inputs), seeded(run, *inputs))


def programs_of_region(*operators: str) -> tuple[nimble_fx.Program, nimble_fx.Program]:
    """The forward and the backward of a checkpointed region."""
    torch.compiler.reset()
    compiled = torch.compile(program([("checkpointed", operators)]), backend="nimble")
    seeded(compiled, torch.randn(4, 4), torch.randn(4, 4))
    forward, backward = nimble_fx.programs()
    return (forward, backward) if "training" in forward.name else (backward, forward)


def types_of_saved(*operators: str) -> list[str]:
    """The types of the results and saved tensors of a checkpointed region's forward."""
    forward, _ = programs_of_region(*operators)
    types = {value.name: str(value.type) for value in forward.graph.values}
    return sorted(types[name] for name in ref_names(forward.graph.outputs))


def test_of_a_dropout_only_the_mask_is_saved() -> None:
    without = types_of_saved("tanh", "square")
    assert types_of_saved("dropout", "square") == ["b8[4, 4]", *without]
    _, backward = programs_of_region("dropout", "square")
    assert "dropout_again = aten.native_dropout_backward.default(mm, " in backward.source


def test_of_attention_without_dropout_nothing_is_saved() -> None:
    assert types_of_saved("attention", "square") == types_of_saved("tanh", "square")


def test_what_only_a_draw_reads_is_computed_once() -> None:
    forward, backward = programs_of_region("Bernoulli by a constant")
    assert "aten.sigmoid" in forward.source
    assert "aten.sigmoid" not in backward.source


def test_a_draw_of_which_the_backward_reads_a_number_stays_wrapped() -> None:
    forward, backward = Graph(), Graph()
    x = forward.placeholder("x")
    op = torch.ops.aten.native_dropout.default
    call = forward.call_function(run_and_save, (op, x, 0.5, True))
    state, results = (forward.call_function(getitem, (call, i)) for i in range(2))
    results.meta["val"] = torch.randn(3), 3
    forward.output((forward.call_function(getitem, (results, 0)), state))
    inputs = [backward.placeholder(name) for name in ("x", "rng_state")]
    again = backward.call_function(run_again, (inputs[1], op, inputs[0], 0.5, True))
    backward.output((backward.call_function(getitem, (again, 1)),))
    parts = [GraphModule({}, graph) for graph in (forward, backward)]
    keep_draws(*parts)
    for graph, wrapper in zip((forward, backward), (run_and_save, run_again), strict=True):
        assert len(graph.find_nodes(op="call_function", target=wrapper)) == 1
