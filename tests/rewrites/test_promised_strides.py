"""After the rewrite each operator returns the strides that AOTAutograd has traced with."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils import _pytree as pytree

import nimble_fx
from nimble_fx.rewrites import promised_strides
from nimble_fx.rewrites.promised_strides import keep_promised_strides
from nimble_fx.torch_internals.leaves import tensors_in
from tests.support.eager import assert_same
from tests.support.opaque_memory import lstm_backward
from tests.support.promised_types import run_as_promised, run_with_formats
from tests.support.samples import names, samples
from tests.support.schedules import aten_graph

aten = torch.ops.aten

OPERATORS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "roll": lambda x, y: torch.roll(x, 1, 2),
    "channel_shuffle": lambda x, y: torch.channel_shuffle(x, 2),
    "floor_divide": lambda x, y: torch.floor_divide(x, y),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 1),
    "group_norm": lambda x, y: F.group_norm(x, 2),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "logsigmoid": lambda x, y: F.logsigmoid(x),
    "pools": lambda x, y: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
    "convolution": lambda x, y: F.conv2d(x, y[:, :, :3, :3]),
    "product": lambda x, y: x @ y.transpose(2, 3),
}

WAYS_ON: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.contiguous().view(-1),
    "as_strided": lambda x: x.contiguous().as_strided((x.numel() // 2, 2), (2, 1)),
    "reshape": lambda x: x.reshape(x.shape[0], -1) + 1,
    "flatten": lambda x: x.permute(0, 2, 3, 1).contiguous().flatten(1),
    "channels last": lambda x: x.to(memory_format=torch.channels_last).permute(0, 2, 3, 1),
}


def here(device: torch.device) -> torch.device:
    return device


def laid_out(order: list[int], shape: tuple[int, ...]) -> Tensor:
    """A tensor of a shape whose dimensions are in some order in memory."""
    back = [order.index(i) for i in range(len(order))]
    return torch.randn([shape[i] for i in order]).permute(back)


ORDERS = st.permutations(range(4))


@settings(max_examples=200)
@given(
    st.sampled_from(list(OPERATORS)), st.sampled_from(list(WAYS_ON)), ORDERS, ORDERS, st.booleans()
)
def test_values_are_eagers_and_strides_as_promised(
    name: str, way: str, order: list[int], other: list[int], is_flat: bool
) -> None:
    shape = (2, 4, 1, 6) if is_flat and name not in ("pools", "convolution") else (2, 4, 4, 6)
    x, y = laid_out(order, shape), laid_out(other, shape)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return WAYS_ON[way](OPERATORS[name](x, y))

    gm = keep_promised_strides(aten_graph(function, x, y), here)
    torch.testing.assert_close(run_as_promised(gm, x, y), function(x, y))


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "upsample nearest": lambda x: F.interpolate(x, scale_factor=2),
    "upsample bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "max pool": lambda x: F.max_pool2d(x, 3, 1, 1),
    "average pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "mean of columns": lambda x: x.mean(2, keepdim=True),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 1),
    "roll": lambda x: torch.roll(x, 1, 2),
    "softmax": lambda x: x.softmax(1),
    "relu": torch.relu,
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "one channel": lambda x: F.conv2d(x, torch.ones(1, x.shape[1], 1, 1)),
    "four channels": lambda x: F.conv2d(x, torch.ones(4, x.shape[1], 1, 1)),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
}


@settings(max_examples=200)
@given(
    st.sampled_from([(2, 1, 4, 6), (1, 1, 4, 6), (1, 4, 4, 6), (2, 1, 1, 3)]),
    st.booleans(),
    st.lists(st.sampled_from(sorted(KERNELS)), min_size=1, max_size=4),
)
def test_images_of_one_channel_have_the_promised_format(
    shape: tuple[int, ...], is_last: bool, names: list[str]
) -> None:
    order = [0, 2, 3, 1] if is_last else [0, 1, 2, 3]
    x = laid_out(order, shape)

    def function(x: Tensor) -> list[Tensor]:
        values = [x]
        for name in names:
            values.append(KERNELS[name](values[-1]))
        return values[1:]

    gm = keep_promised_strides(aten_graph(function, x), here)
    results, differing = run_with_formats(gm, x)
    torch.testing.assert_close(results, function(x))
    assert differing == []


def test_a_linear_layer_after_an_image_of_one_channel_is_eagers() -> None:
    layers = (nn.Upsample(scale_factor=2), nn.Conv2d(1, 4, 1), nn.Linear(4, 3))
    model: nn.Module = nn.Sequential(*layers)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = laid_out([0, 2, 3, 1], (2, 1, 2, 2))
    assert x.stride()[1] == 1
    compiled = torch.compile(model, backend="nimble", options={"on_fallback": "error"})
    for is_training in (False, True):
        with torch.set_grad_enabled(is_training):
            torch.testing.assert_close(compiled(x), model(x))


def test_a_size_that_is_1_in_the_first_call_only_is_not_taken_for_a_dimension_to_correct() -> None:
    def function(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear") * 2

    compiled = torch.compile(function, backend="nimble")
    config: Any = torch.fx.experimental._config
    with torch.no_grad(), config.patch(backed_size_oblivious=True):
        for n_images in (1, 3):
            x = torch.randn(n_images, 1, 4, 6).as_strided((n_images, 1, 4, 6), (24, 1, 6, 1))
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("n_images", [1, 2])
def test_outputs_of_one_channel_have_eagers_strides(n_images: int) -> None:
    def function(x: Tensor) -> list[Tensor]:
        one = F.conv2d(x, torch.ones(1, 3, 1, 1))
        return [torch.sigmoid(one), F.interpolate(one, scale_factor=2), (one > 0) * x]

    x = laid_out([0, 2, 3, 1], (n_images, 3, 4, 4))
    with torch.no_grad():
        found, expected = torch.compile(function, backend="nimble")(x), function(x)
    torch.testing.assert_close(found, expected)
    assert [y.stride() for y in found] == [y.stride() for y in expected]


def is_sparse(tensor: Tensor) -> bool:
    return tensor.layout is not torch.strided


def variants(x: Any) -> list[Any]:
    """A tensor with its dimensions in other orders in memory."""
    if not isinstance(x, Tensor) or x.dim() < 2:
        return []
    x = x.detach()
    found = [x.transpose(0, -1).contiguous().transpose(0, -1)]
    if x.dim() == 4:
        found.append(x.contiguous(memory_format=torch.channels_last))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_each_operator_of_pytorchs_returns_what_is_promised(name: str) -> None:
    for sample in islice(samples(name, torch.float32, gradients=False), 8):
        tensors = tensors_in((sample.args, sample.kwargs))
        if isinstance(sample.call, nn.Module) or any(map(is_sparse, tensors)):
            continue
        (first, *others), kwargs = sample.arguments()
        for x in variants(first):
            assert_as_promised(sample.call, x, others, kwargs)


def assert_as_promised(call: Any, x: Tensor, others: list[Any], kwargs: dict[str, Any]) -> None:
    """A graph of a call does what the call does, and returns what is promised."""
    leaves, spec = pytree.tree_flatten((others, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [x, *(leaves[i].detach() for i in places)]

    def function(x: Tensor, *given: Tensor) -> Any:
        values = list(leaves)
        for i, value in zip(places, given, strict=True):
            values[i] = value
        args, named = pytree.tree_unflatten(values, spec)
        return call(x, *args, **named)

    try:
        function(*tensors)
        gm = aten_graph(function, *tensors)
    except Exception:  # it takes no tensors of these strides, or cannot be traced
        return
    if any(not _is_repeatable(node) for node in gm.graph.nodes):
        return
    run_as_promised(keep_promised_strides(gm, here), *tensors)


def _is_repeatable(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    unpredictable = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape)
    is_bag = node.target is aten._embedding_bag_forward_only.default  # what nobody reads differs
    return not (is_bag or any(tag in tags for tag in unpredictable))


ALONE: dict[str, Callable[[Tensor], Any]] = {
    "a kernel that keeps its promise": lambda x: torch.relu(x) + torch.cumsum(x, 1),
    "a pointwise operator of one layout": lambda x: torch.xlogy(x, x),
    "a view": lambda x: x.permute(1, 2, 3, 0),
    "random numbers": lambda x: torch.bernoulli(x.abs().clamp(max=1)),
    "a write": lambda x: x.clone().relu_(),
}


@pytest.mark.parametrize("what", ALONE)
def test_it_leaves_alone(what: str) -> None:
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    gm = aten_graph(ALONE[what], x, functional=False)
    before = [*gm.graph.nodes]
    assert [*keep_promised_strides(gm, here).graph.nodes] == before


def test_it_leaves_alone_what_zeros_would_crash() -> None:
    gm = aten_graph(lstm_backward, torch.randn(2, 5, 4).transpose(0, 1))
    before = [*gm.graph.nodes]
    assert [*keep_promised_strides(gm, here).graph.nodes] == before


def test_it_leaves_alone_what_this_machine_cannot_run() -> None:
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    for place in (lambda _: None, lambda _: torch.device("meta")):
        gm = aten_graph(OPERATORS["roll"], x, x)
        before = [*gm.graph.nodes]
        assert [*keep_promised_strides(gm, place).graph.nodes] == before


def test_contiguous_arguments_are_not_run() -> None:
    ran = list[Any]()

    def place(device: torch.device) -> torch.device:
        ran.append(device)
        return device

    keep_promised_strides(aten_graph(lambda x: torch.roll(x, 1, 0).sin(), torch.ones(3, 3)), place)
    assert ran == []


def test_operators_that_are_called_alike_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> list[Tensor]:
        x = x + 1
        return [torch.roll(x, 1, 2), torch.roll(x * 2, 1, 2), torch.roll(x, 2, 2)]

    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    calls, returned = list[torch.fx.Node](), promised_strides._returned_strides

    def counted(node: torch.fx.Node) -> Any:
        calls.append(node)
        return returned(node)

    monkeypatch.setattr(promised_strides, "_returned_strides", counted)
    gm = keep_promised_strides(aten_graph(function, x), here)
    torch.testing.assert_close(run_as_promised(gm, x), function(x))
    assert len(calls) == 2


def nearby(x: Tensor, y: Tensor) -> Tensor:
    return torch.lerp(x, y, 1.0 / x.shape[0]) + torch.add(x, y, alpha=1 / x.shape[1])


def test_what_runs_on_zeros_adds_no_guard_on_sizes() -> None:
    counter = CompileCounterWithBackend("nimble")
    compiled = torch.compile(nearby, backend=counter, dynamic=True, fullgraph=True)
    for n in range(3, 9):
        x = torch.randn(n, n + 1, 5, 6)
        y = torch.randn(n, n + 1, 5, 6).to(memory_format=torch.channels_last)
        assert_same(compiled(x, y), nearby(x, y))
    assert counter.frame_count == 1


SYMBOLIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 1).permute(0, 2, 3, 1).contiguous().flatten(1),
    "floor_divide": lambda x, y: torch.floor_divide(x, y).permute(0, 2, 3, 1).contiguous().view(-1),
    "logsigmoid": lambda x, y: F.logsigmoid(y).permute(0, 2, 3, 1).contiguous().flatten(1),
    "roll": lambda x, y: torch.roll(y, 1, 2).contiguous().flatten(1),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_strides_of_symbolic_sizes_are_kept_too(name: str) -> None:
    compiled = torch.compile(SYMBOLIC[name], backend="nimble", dynamic=True)
    with torch.no_grad():
        for shape in ((2, 4, 4, 6), (3, 5, 4, 7)):
            x, y = torch.randn(shape), torch.randn(shape).to(memory_format=torch.channels_last)
            assert_same(compiled(x, y), SYMBOLIC[name](x, y))


def test_so_are_those_of_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Hardswish())
    model.append(nn.Flatten()).append(nn.Linear(512, 3)).double()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(5, 4, 8, 8).double().to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="nimble", dynamic=True)
    weights = list(model.parameters())
    results = [torch.autograd.grad(f(x).square().sum(), weights) for f in (compiled, model)]
    torch.testing.assert_close(*results)


def test_a_number_that_depends_on_data_matters_to_no_strides() -> None:
    def rolled(x: Tensor, i: Tensor) -> Tensor:
        return torch.roll(x, int(i.item()), 2).contiguous().view(-1)

    x = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last)
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(rolled, backend="nimble", options={"on_fallback": "silent"})
        for i in (3, 2):
            assert_same(compiled(x, torch.tensor(i)), rolled(x, torch.tensor(i)))


class Decoder(nn.Module):
    """Mixes images of one format, and reads them as matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.linear = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.roll(self.norm(self.convolution(x)), 1, 2)
        result: Tensor = self.linear(torch.channel_shuffle(y, 2).reshape(y.shape[0], 16, -1))
        return result


@pytest.mark.parametrize(
    ("training", "device", "dynamic"),
    [(False, None, False), (False, "virtual", True), (True, None, True), (True, "virtual", False)],
)
def test_a_model_of_images_in_the_channels_last_format_is_eagers(
    training: bool, device: str | None, dynamic: bool
) -> None:
    torch.manual_seed(0)
    model = Decoder().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    options: dict[str, Any] = {"on_fallback": "error"} | ({"device": device} if device else {})
    compiled = torch.compile(model, backend="nimble", options=options, dynamic=dynamic)
    for n in (2, 3) if dynamic else (2,):
        x = torch.randn(n, 3, 8, 8).to(memory_format=torch.channels_last)
        with torch.set_grad_enabled(training):
            ours, theirs = compiled(x), model(x)
        assert_same(ours, theirs)
        if training:
            weights = list(model.parameters())
            gradients = [torch.autograd.grad(y.sum(), weights) for y in (ours, theirs)]
            assert_same(*gradients)
    assert nimble_fx.programs()
