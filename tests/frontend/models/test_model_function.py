"""Dynamo gets a function of its own for any model, and copies of arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.frontend.models.meta_copy import ToMeta
from nimble_fx.frontend.models.model_function import (
    Arguments,
    name_of,
    unique_function,
)
from tests.support.eager import assert_same
from tests.support.kinds import exported, graph_module, jit_traced, scripted
from tests.support.models import Branchy


def test_copies_share_memory_where_the_arguments_do_and_nowhere_else() -> None:
    x = torch.randn(4, 6)
    given = Arguments((x, x, x[1:], x.t()), {"rows": [x[:2], 3]})
    made = given.copies()
    first, again, tail, turned = made.args
    assert first is again
    assert made.kwargs["rows"][1] == 3
    for copied, tensor in zip(made.tensors, given.tensors, strict=True):
        assert torch.equal(copied, tensor)
        assert copied.stride() == tensor.stride()
        assert copied.data_ptr() - first.data_ptr() == tensor.data_ptr() - x.data_ptr()
    assert first.data_ptr() != x.data_ptr()
    first.zero_()
    assert not tail.any()
    assert not turned.any()
    assert x.any()


def test_copies_are_conjugated_and_negated_lazily_where_the_arguments_are() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    given = Arguments((z, z.conj(), z.conj().imag, z.imag), {})
    made = given.copies()
    for copied, tensor in zip(made.tensors, given.tensors, strict=True):
        assert torch.equal(copied, tensor)
        assert (copied.is_conj(), copied.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    before = z.clone()
    made.args[0].zero_()
    assert not any(copied.any() for copied in made.tensors)
    assert torch.equal(z, before)


def test_copies_require_gradients_where_the_arguments_do_and_are_leaves() -> None:
    leaf = torch.randn(2, requires_grad=True)
    given = Arguments((leaf, leaf * 2, leaf.detach()), {})
    made = given.copies().args
    assert [x.requires_grad for x in made] == [True, True, False]
    assert all(x.is_leaf for x in made)


def test_an_argument_that_comes_twice_is_one_tensor_afterwards_too() -> None:
    x = torch.randn(2, requires_grad=True) * 2
    given = Arguments((x, [x]), {"again": x})
    for made in (given.copies(), given.with_tensors(ToMeta())):
        first, second, third = made.tensors
        assert first is second
        assert second is third


def test_a_copy_is_an_inference_tensor_if_the_argument_is_one() -> None:
    ordinary = torch.ones(2)
    with torch.inference_mode():
        given = Arguments((ordinary, torch.ones(2)), {})
        inside = given.copies().args
    assert [x.is_inference() for x in inside] == [False, True]
    assert [x.is_inference() for x in given.copies().args] == [False, True]


def test_each_function_has_a_code_object_and_a_name_of_its_own() -> None:
    model = Branchy()
    one, two = unique_function(model), unique_function(model)
    assert one.__code__ is not two.__code__
    assert one.__code__.co_name != two.__code__.co_name
    x = torch.randn(2, 4)
    assert torch.equal(one(x), model(x))


def test_a_model_has_the_name_of_its_function_or_class() -> None:
    assert [name_of(torch.relu), name_of(nn.ReLU())] == ["relu", "ReLU"]


@pytest.mark.parametrize("kind", [exported, graph_module, scripted, jit_traced])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_models_of_other_kinds_compute_and_train_as_eager(kind: Any) -> None:
    model, x = Branchy(), torch.randn(2, 4)
    made = kind(model, x)
    assert_same(nimble_fx.compile(made, x)(x), model(x).detach())
    compiled = nimble_fx.compile(made, x, training=True)
    assert len(compiled.programs) == 2
    compiled(x).square().sum().backward()
    weights = list(compiled.model.parameters())  # type: ignore[attr-defined]
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert_same([weight.grad for weight in weights], list(expected))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_bsr])
def test_a_sparse_argument_is_copied(layout: torch.layout) -> None:
    blocks: Any = {"blocksize": (1, 2)} if layout is torch.sparse_bsr else {}
    sparse = torch.eye(4).to_sparse(layout=layout, **blocks).requires_grad_()
    (copied,) = Arguments.parse(sparse).copies().args
    assert copied.layout is layout
    assert copied.is_leaf
    assert copied.requires_grad
    assert torch.equal(copied.to_dense(), sparse.to_dense())
    with torch.no_grad():
        copied.zero_()
    assert sparse.to_dense().sum() == 4


class Scaled(nn.Module):
    """Takes an argument by position only, and one by keyword only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, /, *, scale: Tensor) -> Tensor:
        result: Tensor = self.layer(x) * scale
        return result


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("guards", [False, True])
def test_arguments_may_be_both_by_position_and_by_keyword(is_exported: bool, guards: bool) -> None:
    net, x, scale = Scaled(), torch.randn(2, 4), torch.randn(4)
    model = torch.export.export(net, (x,), {"scale": scale}) if is_exported else net
    example: dict[str, Any] = {"example_kwargs": {"scale": scale}}
    compiled = nimble_fx.compile(model, x, guards=guards, **example, on_fallback="error")
    other = torch.randn(2, 4), torch.randn(4)
    assert_same(compiled(other[0], scale=other[1]), net(other[0], scale=other[1]).detach())
    with pytest.raises((TypeError, ValueError) if guards else nimble_fx.InputError):
        compiled(*other)
    program = nimble_fx.plan(model, x, device="h100", **example)
    assert len(program.graph.launching) == 2


@pytest.mark.parametrize("take", [nimble_fx.compile, nimble_fx.plan])
@pytest.mark.parametrize(
    ("inputs", "keywords", "message"),
    [
        ({"x": torch.ones(2)}, {"scale": torch.ones(2)}, "is a dict of keyword arguments already"),
        (torch.ones(2), 3, "example_kwargs is int; it takes a dict"),
        (torch.ones(2), {1: 2}, "example_kwargs has the key 1, which is no name"),
    ],
)
def test_keyword_arguments_are_a_dict_by_name(
    take: Any, inputs: Any, keywords: Any, message: str
) -> None:
    with pytest.raises(nimble_fx.OptionError, match=message):
        take(Scaled(), inputs, example_kwargs=keywords)
