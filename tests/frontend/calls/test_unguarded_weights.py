"""A call without guards reads weights that have changed, and refuses those that do not fit."""

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import nimble_fx
from nimble_fx.errors import InputError
from tests.support.eager import assert_same
from tests.support.models import Branchy

DEVICES: list[dict[str, Any]] = [{}, {"device": "virtual", "seed": 3}]


CHANGES = ["in place", "replaced", "module replaced", "moved", "swapped", "loaded"]


@pytest.mark.parametrize("options", DEVICES, ids=str)
@settings(deadline=None)
@given(
    st.lists(st.sampled_from(CHANGES), max_size=4),
    st.booleans(),
)
def test_changed_weights_are_read(options: dict[str, Any], changes: list[str], grad: bool) -> None:
    torch.manual_seed(0)
    net, x = Branchy(), torch.randn(2, 4)
    with torch._dynamo.config.patch(invalidate_compile_context_weakrefs=True):
        compiled = nimble_fx.compile(net, x, guards=False, **options)
    for change in ["none", *changes]:
        match change:
            case "in place":
                net.a.weight.data.mul_(1.5)
            case "replaced":
                net.a.weight = nn.Parameter(torch.randn(4, 4))
            case "module replaced":
                net.a = nn.Linear(4, 4, bias=False)
            case "moved":
                net.b.weight.data = torch.randn(4, 4)
            case "swapped":
                torch.utils.swap_tensors(net.b.weight, nn.Parameter(torch.randn(4, 4)))
            case "loaded":
                net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()})
        x = torch.randn(2, 4)
        with torch.set_grad_enabled(grad):
            result = compiled(x)
        assert_same(result, net(x).detach())
        assert not result.requires_grad
    assert len(compiled.programs) == 1


UNLIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "stride": lambda weight: weight.t().contiguous().t(),
    "shape": lambda weight: weight[:2].clone(),
    "dtype": Tensor.double,
    "device": partial(Tensor.to, device="meta"),
}


@pytest.mark.parametrize("options", [{}, {"kernels": "inductor"}, *DEVICES[1:]], ids=str)
@pytest.mark.parametrize("attribute", UNLIKE)
def test_a_weight_that_does_not_fit_the_program_is_refused(
    attribute: str, options: dict[str, Any]
) -> None:
    net, x = nn.Linear(512, 512), torch.randn(32, 512)
    options = {"fold_weights": True} | options
    compiled = nimble_fx.compile(net, x, guards=False, **options)
    fitting = net.weight
    net.weight = nn.Parameter(UNLIKE[attribute](fitting.data))
    for _ in range(2):
        message = rf"weight.* has the {attribute} .*compiled for.*compile the model again"
        with pytest.raises(InputError, match=message):
            compiled(x)
    net.weight = fitting
    assert torch.allclose(compiled(x), net(x), atol=1e-4)


def test_inductors_kernels_read_a_weight_of_other_strides_right() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    net = nn.Sequential(linear, nn.Softmax(-1))
    compiled = nimble_fx.compile(net, x, guards=False, kernels="inductor", fold_weights=False)
    linear.weight = nn.Parameter(UNLIKE["stride"](linear.weight.data))
    assert torch.allclose(compiled(x), net(x), atol=1e-6)


def test_one_of_other_strides_that_a_fused_kernel_reads_is_named() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.scale: Tensor
            return torch.relu(x) * self.scale

    net, x = Scaled(), torch.randn(4, 4)
    compiled = nimble_fx.compile(net, x, guards=False, kernels="inductor")
    net.scale = UNLIKE["stride"](net.scale)
    with pytest.raises(
        InputError, match=r"when its scale was .*strides \[4, 1\].*compile it again"
    ):
        compiled(x)


def test_a_weight_that_is_conjugated_now_does_not_fit_folded_weights() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight * 2)

    model, x = Doubled(), torch.randn(2, 4, dtype=torch.complex64)
    compiled = nimble_fx.compile(model, x, guards=False, fold_weights=True)
    with torch.no_grad():
        before = model.weight.data
        model.weight.data = before.conj()
        with pytest.raises(InputError, match=r"weight has the conjugate bit True, .*again"):
            compiled(x)
        model.weight.data = before.conj().resolve_conj()
        assert torch.allclose(compiled(x), model(x), atol=1e-5)


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "stride": Tensor.t,
    "shape": lambda weight: weight[:256],
    "dtype": lambda weight: weight.view(torch.int32),
}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("options", DEVICES, ids=str)
@pytest.mark.parametrize("attribute", IN_PLACE)
def test_so_is_one_whose_memory_is_the_same(
    attribute: str, options: dict[str, Any], fold: bool
) -> None:
    net, x = nn.Linear(512, 512).requires_grad_(False), torch.randn(32, 512)
    compiled = nimble_fx.compile(net, x, guards=False, fold_weights=fold, **options)
    compiled(x)
    before = net.weight.data
    net.weight.data = IN_PLACE[attribute](before)
    if options or fold:
        with pytest.raises(InputError, match=rf"weight.* has the {attribute} .*compiled for"):
            compiled(x)
    net.weight.data = before
    for is_wanted in (True, False):  # which is no reason to refuse it
        net.weight.requires_grad_(is_wanted)
        assert torch.allclose(compiled(x), net(x), atol=1e-4)


REMOVED: dict[str, Callable[[nn.Sequential], Any]] = {
    "0.weight": lambda net: weight_norm(net[0]),
    "2.bias": lambda net: net[2].__delattr__("bias"),
    "2.weight": lambda net: net.__delitem__(2),
}


@pytest.mark.parametrize("options", [{"fold_weights": False}, *DEVICES], ids=str)
@pytest.mark.parametrize("name", REMOVED)
def test_a_weight_that_is_gone_is_named(name: str, options: dict[str, Any]) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False, **options)
    REMOVED[name](net)
    with pytest.raises(InputError, match=rf"when its {name} was .*\. It is now gone: compile"):
        compiled(x)


class Tied(nn.Module):
    """Has one weight in two layers, and buffers that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.sparse = nn.Buffer(torch.eye(4).to_sparse_csr())
        self.quantized = nn.Buffer(torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.quint8))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.two(x).relu()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:  # type: ignore[override]
        return super().named_parameters()


def test_weights_that_were_tied_must_be_tied() -> None:
    net, x = Tied(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    net.one.weight = net.two.weight = nn.Parameter(torch.randn(4, 4))
    assert_same(compiled(x), net(x).detach())
    net.two.weight = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(InputError, match=r"one.weight and two.weight were one tensor\. They"):
        compiled(x)


class TwoNames(nn.Module):
    """One module under two names, and one weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(4, 4)
        self.c, self.d = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.d.weight = self.c.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.relu(self.b(x)))
        return result


def popped(net: nn.Sequential) -> None:
    net.pop(1)
    net.insert(1, nn.ReLU())
    net[2] = nn.Linear(4, 4)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


MODULES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "by item": (chain, lambda net: net.__setitem__(0, nn.Linear(4, 4))),
    "after another was removed": (chain, popped),
    "with its attributes": (chain, lambda net: net[0].__setstate__(nn.Linear(4, 4).__dict__)),
    "under one of two names": (TwoNames, lambda net: setattr(net, "b", nn.Linear(4, 4))),
    "with a tied weight": (TwoNames, lambda net: setattr(net, "c", nn.Linear(4, 4, bias=False))),
}


@pytest.mark.parametrize("options", DEVICES, ids=str)
@pytest.mark.parametrize("change", MODULES)
def test_weights_of_a_module_that_was_replaced_are_not_read(
    change: str, options: dict[str, Any]
) -> None:
    make, replace_one = MODULES[change]
    net, x = make(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False, **options)
    assert_same(compiled(x), net(x).detach())
    replace_one(net)
    assert_same(compiled(x), net(x).detach())


def test_a_module_that_was_replaced_is_freed() -> None:
    net, x = chain(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False, fold_weights=False)
    replaced = weakref.ref(net[0])
    net[0] = nn.Linear(4, 4)
    compiled(x)
    gc.collect()
    assert replaced() is None
