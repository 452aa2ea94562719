"""A copy of a module has the same structure, other tensors, and the same shared memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import UnsupportedError
from nimble_fx.frontend.models.meta_copy import ToMeta, copy_with
from tests.support.models import GoogLeNet


def test_a_twin_has_other_tensors_and_shares_nothing_else() -> None:
    model = GoogLeNet()
    copied = copy_with(model, ToMeta())
    assert [name for name, _ in copied.named_modules()] == [
        name for name, _ in model.named_modules()
    ]
    theirs = dict(model.state_dict())
    for name, value in copied.state_dict().items():
        assert value.device.type == "meta"
        assert (value.shape, value.dtype) == (theirs[name].shape, theirs[name].dtype)
    assert all(isinstance(p, nn.Parameter) for p in copied.parameters())
    copied.eval()
    assert model.cells.training


def test_results_that_a_module_has_kept_are_no_hindrance() -> None:
    """As by the hooks of `torch.nn.utils.weight_norm`; PyTorch copies no such tensors."""
    layer = nn.utils.weight_norm(nn.Linear(4, 3))
    copied = copy_with(layer, ToMeta())
    assert {p.device.type for p in copied.parameters()} == {"meta"}
    assert torch.equal(copied.weight, layer.weight)
    assert copied.weight.is_leaf
    program = nimble_fx.plan(layer, torch.randn(2, 4), device="h100")
    assert len(program.graph.tasks) > 1


def test_tensors_without_data_have_the_geometry_and_share_memory_as_before() -> None:
    base = torch.randn(4, 6, requires_grad=True)
    bare = ToMeta()
    whole, turned, other = bare(base), bare(base.detach()[1:].t()), bare(torch.randn(2))
    assert [x.device.type for x in (whole, turned, other)] == ["meta"] * 3
    assert (turned.shape, turned.stride(), turned.storage_offset()) == ((6, 3), (1, 6), 6)
    assert whole.untyped_storage()._cdata == turned.untyped_storage()._cdata
    assert whole.untyped_storage()._cdata != other.untyped_storage()._cdata
    assert [x.requires_grad for x in (whole, turned, other)] == [True, False, False]


def test_a_tensor_that_is_gone_is_not_taken_for_one_in_its_place() -> None:
    bare = ToMeta()
    twins = [bare(torch.empty(n)) for n in range(9)]
    assert [len(twin) for twin in twins] == list(range(9))
    assert len({twin.untyped_storage()._cdata for twin in twins}) == 9


@pytest.mark.parametrize("kind", [nn.Parameter, lambda data, _: data])
def test_a_view_without_data_is_one_of_its_base(kind: Callable[..., Tensor]) -> None:
    base, bare = kind(torch.randn(4, 6), False), ToMeta()
    first, whole, second = bare(base[1:]), bare(base), bare(base[:2].t())
    assert first._base is second._base is whole
    assert type(whole) is type(base)
    assert (second.shape, second.stride()) == ((6, 2), (1, 6))


def test_a_view_whose_data_were_replaced_shares_no_memory() -> None:
    base, bare = torch.randn(4, 6), ToMeta()
    view = base[1:]
    view.data = torch.randn(9, 9)
    twins = bare(base), bare(view)
    assert len({twin.untyped_storage()._cdata for twin in twins}) == 2
    assert twins[1].shape == (9, 9)


def test_tensors_without_data_are_conjugated_and_negated_lazily_as_before() -> None:
    z = torch.zeros(3, dtype=torch.complex64).conj()
    twins = [ToMeta()(x) for x in (z, z.imag, z.conj())]
    assert [x.is_conj() for x in twins] == [True, False, False]
    assert [x.is_neg() for x in twins] == [False, True, False]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_tensor_without_a_storage_has_no_twin(layout: torch.layout) -> None:
    with pytest.raises(UnsupportedError, match=f"\\[2, 2\\] and {layout} is among"):
        ToMeta()(torch.eye(2).to_sparse(layout=layout))


def test_a_quantized_tensor_has_no_twin() -> None:
    with pytest.raises(UnsupportedError, match="quint8 is among"):
        ToMeta()(torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8))
