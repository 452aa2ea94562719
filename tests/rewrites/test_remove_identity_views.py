"""Views that are equal to their tensors go, and callers cannot notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule

import nimble_fx
from nimble_fx.rewrites.remove_identity_views import remove_identity_views
from nimble_fx.torch_internals.graph_modules import copied
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.schedules import aten_graph

aten = torch.ops.aten


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


VIEW = Callable[[Tensor], Tensor]
IDENTITIES: list[VIEW] = [
    lambda x: x.detach(),
    lambda x: aten.alias.default(x),
    lambda x: x.view(2, 3),
    lambda x: x.expand(2, 3),
    lambda x: x[:],
    lambda x: x.permute(0, 1),
]
"""For a tensor of 2 x 3 elements."""


@given(st.lists(st.sampled_from(IDENTITIES), min_size=1, max_size=4))
def test_chains_of_identities_go_as_a_whole(chain: list[VIEW]) -> None:
    def program(x: Tensor) -> Tensor:
        for view in chain:
            x = view(x)
        return x.cos()

    assert rewritten(program, torch.randn(2, 3)) == [aten.cos.default]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:2],
        lambda x: x.t(),
        lambda x: x.flatten()[:3].as_strided((3,), (1,), 3),
        lambda x: x.view(torch.int32),  # which PyTorch also detaches
        lambda x: x.clone(),
    ],
    ids=["sizes", "strides", "offset", "type", "copy"],
)
def test_what_differs_in_anything_stays(view: VIEW) -> None:
    def program(x: Tensor) -> Tensor:
        return view(x).abs()

    x = torch.randn(3, 3)
    traced = operators(aten_graph(program, x))
    assert rewritten(program, x) == [op for op in traced if op is not aten.detach.default]


def test_views_of_another_argument_and_of_sparse_tensors_stay() -> None:
    """`second` returns a view of its second argument, which has the sizes of the first."""
    with torch.library._scoped_library("nimble_identity", "FRAGMENT") as library:
        library.define("second(Tensor x, Tensor(a) y) -> Tensor(a)")
        library.impl("second", lambda x, y: y.view(y.shape), "CompositeExplicitAutograd")
        second = torch.ops.nimble_identity.second.default
        x, y = torch.randn(3), torch.randn(3)
        gm = aten_graph(lambda x, y: second(x, y).cos(), x, y, functional=False)
        assert second in operators(remove_identity_views(gm))
    sparse = torch.eye(3).to_sparse()
    assert aten.detach.default in rewritten(lambda x: x.detach().abs(), sparse)


def test_a_conjugate_stays() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    assert aten._conj.default in rewritten(lambda x: x.conj() * x, x)


def test_the_caller_can_tell_a_view_from_its_tensor() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.cos()
        view = y.detach()
        return y, view, view.sin()

    gm = remove_identity_views(aten_graph(program, torch.randn(3)))
    cos, detach, sin = (node for node in gm.graph.nodes if node.op == "call_function")
    assert detach.target is aten.detach.default
    assert sin.args == (cos,)
    y, view, _ = gm(torch.randn(3))
    assert y is not view
    assert y.data_ptr() == view.data_ptr()


def test_symbolic_sizes_get_no_guard() -> None:
    def program(x: Tensor) -> Tensor:
        return x.detach().cos().view(-1, 3).sin()

    compiled = torch.compile(program, backend="nimble", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (4, 5, 7, 2):
            x = torch.randn(n, 3)
            assert torch.equal(compiled(x), program(x))


def test_activations_in_training_are_saved_and_read_without_views() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    torch.compile(model, backend="nimble")(torch.randn(2, 4)).tanh().sum().backward()
    sources = [program.source for program in nimble_fx.programs()]
    assert ["detach" in source for source in sources] == [False, False]
