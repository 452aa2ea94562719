"""Calls without Dynamo's frame evaluation are eager's after any change of model and inputs."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nimble_fx
from tests.support.changing_net import CHANGES, DEVICES, INPUTS, MODES, Net
from tests.support.eager import assert_same
from tests.support.models import Branchy
from tests.support.without_dynamo import RefusedError, only_direct

STEPS = st.lists(
    st.tuples(*[st.sampled_from(list(each)) for each in (CHANGES, INPUTS, MODES)]), max_size=4
)


@pytest.mark.slow
@given(st.sampled_from(DEVICES), STEPS)
def test_calls_are_eagers_after_any_change(
    options: dict[str, Any], steps: list[tuple[str, str, str]]
) -> None:
    torch.manual_seed(0)
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    eager = copy.deepcopy(net)
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = nimble_fx.compile(net, INPUTS["plain"](x, y), **options)
        for step in [("nothing", "plain", "no_grad")] * 2 + steps:
            for model in (net, eager):
                torch.manual_seed(1)
                CHANGES[step[0]](model)
            for _ in range(2):
                arguments = INPUTS[step[1]](x, y)
                with torch.no_grad(), MODES[step[2]]():
                    expected = eager(*arguments)
                with MODES[step[2]]():
                    assert_same(compiled(*arguments), expected)
            assert_same(dict(net.state_dict()), dict(eager.state_dict()))


@pytest.mark.parametrize("options", DEVICES, ids=str)
def test_after_the_first_call_dynamo_is_not_asked(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    arguments = INPUTS["plain"](x, y)
    compiled = nimble_fx.compile(net, arguments, **options)
    compiled(*arguments)
    only_direct(compiled, monkeypatch)
    for change in ("nothing", "a weight in place", "a new weight", "a weight in other memory"):
        CHANGES[change](net)
        with torch.no_grad():
            assert_same(compiled(*INPUTS["other values"](x, y)), net(*INPUTS["other values"](x, y)))
    with pytest.raises(RefusedError):
        compiled(*INPUTS["other sizes"](x, y))


def gradients(net: Net, call: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """The results of a call, and the gradients of the parameters and of the first argument."""
    torch.manual_seed(1)
    results = call(*arguments)
    leaves = [x for x in (*net.parameters(), arguments[0]) if x.requires_grad]
    loss = results["sum"].square().sum() + results["parts"][0].sum()
    found: list[Any] = []
    if loss.requires_grad:
        found += torch.autograd.grad(loss, leaves, allow_unused=True)
    return [results, found]


@pytest.mark.slow
@given(
    st.sampled_from(DEVICES),
    st.lists(
        st.tuples(
            st.sampled_from(list(CHANGES)),
            st.sampled_from(["plain", "other values", "other sizes", "with gradients"]),
            st.booleans(),
        ),
        max_size=3,
    ),
)
def test_training_is_eagers_after_any_change(
    options: dict[str, Any], steps: list[tuple[str, str, bool]]
) -> None:
    torch.manual_seed(0)
    net, (x, y) = Net().train(), torch.randn(2, 4, 4)
    eager = copy.deepcopy(net)
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = nimble_fx.compile(net, INPUTS["plain"](x, y), training=True, **options)
        for change, inputs, grad in [("nothing", "plain", True)] * 2 + steps:
            for model in (net, eager):
                torch.manual_seed(1)
                CHANGES[change](model)
            for _ in range(2):
                with torch.set_grad_enabled(grad):
                    expected = gradients(eager, eager, INPUTS[inputs](x, y))
                    assert_same(gradients(net, compiled, INPUTS[inputs](x, y)), expected)
            assert_same(dict(net.state_dict()), dict(eager.state_dict()))


def test_a_training_is_called_directly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = Net().train(), torch.randn(2, 4, 4)
    compiled = nimble_fx.compile(net, INPUTS["plain"](x, y), training=True)
    compiled(*INPUTS["plain"](x, y))
    only_direct(compiled, monkeypatch)
    for _ in range(3):
        eager = copy.deepcopy(net)
        arguments = INPUTS["other values"](x, y)
        assert_same(gradients(net, compiled, arguments), gradients(eager, eager, arguments))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(0.1)
    with torch.no_grad(), pytest.raises(RefusedError):
        compiled(*INPUTS["plain"](x, y))


def initialized_again(net: Net) -> None:
    net.a.__init__(4, 4)  # type: ignore[misc]


def other_tables(net: Net) -> None:
    net.a._parameters = {
        k: nn.Parameter(v + 1) for k, v in net.a._parameters.items() if v is not None
    }


def other_state(net: Net) -> None:
    vars(net.a).update(vars(nn.Linear(4, 4)))


def other_layers(net: Net) -> None:
    del net.b[0]
    net.b.insert(0, nn.Linear(4, 4))


@pytest.mark.parametrize("change", [initialized_again, other_tables, other_state, other_layers])
@pytest.mark.parametrize("guards", [True, False])
def test_weights_are_those_that_the_model_has_now(
    change: Callable[[Net], None], guards: bool
) -> None:
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    arguments = INPUTS["plain"](x, y)
    compiled = nimble_fx.compile(net, arguments, guards=guards)
    for _ in range(3):
        change(net)
        with torch.no_grad():
            assert_same(compiled(*arguments), net(*arguments))


def test_a_graph_may_be_retained() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4)), torch.randn(3, 4)
    eager = copy.deepcopy(net)
    compiled = nimble_fx.compile(net, x, training=True)
    for model, call in ((net, compiled), (eager, eager)):
        loss = call(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert_same([p.grad for p in net.parameters()], [p.grad for p in eager.parameters()])


def test_where_pytorch_lacks_a_name_dynamo_makes_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nimble_fx.torch_internals.dynamo.entries._are_there", False)
    monkeypatch.setattr("nimble_fx.torch_internals.dynamo.entries._entries", None)
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(3):
        assert_same(compiled(x), net(x).detach())


@pytest.mark.gpu
@pytest.mark.parametrize("guards", [True, False])
def test_on_a_gpu_calls_are_on_the_callers_stream_and_may_be_captured(guards: bool) -> None:
    net, x = Branchy().cuda(), torch.randn(2, 4, device="cuda")
    compiled = nimble_fx.compile(net, x, guards=guards)
    compiled(x)
    assert [program.status.frozen for program in compiled.programs] == [True]
    side = torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(side), torch.no_grad():
            x = torch.randn(2, 4, device="cuda")
            ours = compiled(x)
            assert_same(ours, net(x))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        captured = compiled(x)
    with torch.no_grad():
        net.a.weight.mul_(2)
        x.copy_(torch.randn(2, 4, device="cuda"))
        graph.replay()
        assert_same(captured, net(x))
        assert_same(compiled(x), net(x))


@pytest.mark.gpu
def test_on_a_gpu_trainings_are_eagers() -> None:
    net = Branchy().cuda()
    eager = copy.deepcopy(net)
    compiled = nimble_fx.compile(net, torch.randn(2, 4, device="cuda"), training=True)
    for _ in range(4):
        x = torch.randn(2, 4, device="cuda")
        for model, call in ((net, compiled), (eager, eager)):
            model.zero_grad()
            call(x).square().sum().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        assert_same([p.grad for p in net.parameters()], [p.grad for p in eager.parameters()])
        assert_same(dict(net.state_dict()), dict(eager.state_dict()))
