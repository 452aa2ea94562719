"""Detached tensors and aliases are read as the tensors themselves, and callers cannot notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule

import nimble_fx
from nimble_fx.ir.task_graph import ref_names
from nimble_fx.rewrites.remove_identity_views import remove_identity_views
from nimble_fx.torch_internals.graph_modules import copied
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.schedules import aten_graph

aten = torch.ops.aten


IDENTITIES = (aten.detach.default, aten.alias.default)
"""Since PyTorch 2.15 functionalization writes the second for the first."""


def operators(gm: GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def rewritten(function: Callable[..., Any], *inputs: Tensor) -> list[Any]:
    gm = remove_identity_views(aten_graph(function, *inputs))
    gm.graph.lint()
    return operators(gm)


@given(aten_programs(max_steps=8))
def test_nobody_can_tell_the_rewritten_graph_from_the_graph(program: AtenProgram) -> None:
    gm = aten_graph(program.function(), *program.example_inputs())
    found = []
    for each in (copied(gm), remove_identity_views(gm)):
        each.graph.lint()
        inputs = program.example_inputs()
        torch.manual_seed(0)
        found.append([*inputs, *each(*inputs)])
    expected, ours = found
    assert_same_bits(ours, expected)
    assert_same_sharing(ours, expected)


@given(st.lists(st.sampled_from(IDENTITIES), max_size=4))
def test_chains_go_as_a_whole(chain: list[Any]) -> None:
    def program(x: Tensor) -> Tensor:
        for identity in chain:
            x = identity(x)
        return x.cos() + x

    assert rewritten(program, torch.randn(2, 3)) == [aten.cos.default, aten.add.Tensor]


@pytest.mark.parametrize("reader", [lambda x: x, lambda x: x[1:], lambda x: x.split(1)])
def test_what_the_caller_could_tell_from_the_tensor_stays(reader: Callable[..., Any]) -> None:
    def program(x: Tensor) -> Any:
        y = x.cos()
        view = y.detach().detach()
        return y, reader(view), view.sin()

    gm = remove_identity_views(aten_graph(program, torch.randn(3)))
    assert sum(op in IDENTITIES for op in operators(gm)) == 1
    (sin,) = gm.graph.find_nodes(op="call_function", target=aten.sin.default)
    assert sin.args[0].target is aten.cos.default


def test_a_view_that_is_returned_without_its_tensor_is_still_a_view() -> None:
    assert rewritten(lambda x: x.cos().detach(), torch.randn(3))[1] in IDENTITIES


def test_a_custom_operator_may_return_what_it_takes() -> None:
    with torch.library._scoped_library("nimble_identity", "FRAGMENT") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x, "CompositeExplicitAutograd")
        same = torch.ops.nimble_identity.same.default
        assert rewritten(lambda x: same(x.detach()), torch.randn(3))[0] in IDENTITIES


def test_a_tensor_that_is_detached_inside_of_a_model_is_read_as_itself() -> None:
    torch.compile(lambda x: x.cos().detach().sin(), backend="nimble")(torch.randn(3))
    (program,) = nimble_fx.programs()
    assert [task.target for task in program.graph.tasks] == [aten.cos.default, aten.sin_.default]


class Gates(nn.Module):
    """Activations whose derivatives use their results."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x)).relu()


def test_a_backward_reads_what_was_saved_and_computes_no_activation_again() -> None:
    torch.compile(Gates(), backend="nimble")(torch.randn(2, 4)).sum().backward()
    forward, backward = nimble_fx.programs()
    saved = [task for task in forward.graph.tasks if task.target in IDENTITIES]
    assert len(saved) == 1  # of tanh, once; the product reads and saves the result of sigmoid
    called = [task.target for task in backward.graph.tasks]
    assert {*called}.isdisjoint(IDENTITIES)
    assert {*called}.isdisjoint([aten.sigmoid.default, aten.tanh.default, aten.addmm.default])
    assert called.count(aten.t.default) == 2  # of the gradients that the products read
    returned = backward.graph.by_name
    gradients = [returned[name] for name in ref_names(backward.graph.outputs) if "mm" in name]
    assert [task.target for task in gradients] == [aten.mm.default] * 2


def test_a_backward_returns_each_tensor_once_and_none_of_its_inputs() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        product = x.mm(x)
        return product.t().t(), product.detach(), x.t().t(), x.detach(), x.sin().t().t().t()

    x = torch.randn(3, 3)
    gm = remove_identity_views(aten_graph(program, x), is_backward=True)
    results = gm(x)
    assert len({*map(id, (x, *results))}) == 6
    assert_same_bits(list(results), list(program(x)))
    assert operators(gm).count(aten.t.default) == 3
