"""Values of tensors, and where they are in memory, are restored after a block."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from nimble_fx.frontend.models.restored_values import restored_values
from tests.support.bits import bytes_of

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda base: base,
    "expanded": lambda base: base[:1].expand(4),
    "overlapping": lambda base: base.as_strided((3, 3), (1, 1), 1),
    "part": lambda base: base[2:4],
    "empty": lambda base: base[8:],
    "other type": lambda base: base.view(torch.int32),
    "complex": lambda base: torch.view_as_complex(base.view(-1, 2)),
    "conjugate": lambda base: torch.view_as_complex(base.view(-1, 2)).conj(),
    "negative": lambda base: torch.view_as_complex(base.view(-1, 2)).conj().imag,
}

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda tensor: None,
    "add": lambda tensor: tensor.add_(1),
    "uncounted": lambda tensor: tensor.data.view(-1).view(torch.uint8).fill_(7),
    "grow": lambda tensor: tensor.resize_(100).zero_(),
    "replace": lambda tensor: setattr(tensor, "data", torch.ones_like(tensor)),
    "conjugate": lambda tensor: setattr(tensor, "data", tensor.data.conj()),
    "negate": lambda tensor: setattr(tensor, "data", torch._neg_view(tensor.data)),
    "move": lambda tensor: tensor.set_(torch.zeros(50, dtype=tensor.dtype).untyped_storage()),
    "shrink": lambda tensor: tensor.untyped_storage().resize_(0),
}


def metadata(tensor: Tensor) -> tuple[Any, ...]:
    storage, places = tensor.untyped_storage(), (tensor.shape, tensor.stride())
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.dtype, *places, tensor.storage_offset(), storage.nbytes(), storage._cdata, *bits


@given(
    st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(WRITES))), max_size=4),
    st.booleans(),
)
@example(["part", "itself"], [(1, "add")], False)
@example(["itself", "part"], [(1, "uncounted")], False)
@example(["overlapping", "expanded"], [(0, "uncounted")], True)
@example(["other type"], [(0, "shrink")], False)
def test_tensors_that_share_memory_are_as_they_were(
    views: list[str], writes: list[tuple[int, str]], inference: bool
) -> None:
    with torch.inference_mode(inference):
        base = torch.arange(8.0)
        tensors = [VIEWS[view](base) for view in views]
        places, values = [metadata(t) for t in tensors], [bytes_of(t) for t in tensors]
        with restored_values(tensors):
            # Nothing can be written to a tensor any more whose storage was shrunk.
            for i, write in sorted(writes, key=lambda each: each[1] == "shrink"):
                try:
                    WRITES[write](tensors[i % len(tensors)])
                except RuntimeError:
                    continue  # PyTorch refuses some of these, as some views of it
        assert [metadata(t) for t in tensors] == places
        assert [bytes_of(t) for t in tensors] == values


@pytest.mark.parametrize("inside", [False, True])
def test_inference_tensors_are_as_they_were_in_any_mode(inside: bool) -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
    with torch.inference_mode(inside), restored_values([tensor]), torch.inference_mode():
        tensor.add_(1)
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_tensors_without_data_are_moved_back(kind: str) -> None:
    sparse = torch.empty(3, device="meta", layout=torch.sparse_coo)
    with FakeTensorMode() if kind == "fake" else nullcontext():
        tensor = torch.ones(3, device="cpu" if kind == "fake" else "meta")
        with restored_values([tensor, sparse]):
            tensor.mul_(2)
            tensor.data = torch.ones(1, 3, device=tensor.device)
    assert tensor.shape == (3,)


@pytest.mark.parametrize("kind", ["sparse", "wrapper"])
def test_tensors_without_a_storage_are_as_they_were(kind: str) -> None:
    parts: dict[str, Any] = {
        "sparse": torch.ones(3).to_sparse(),
        "wrapper": TwoTensor(torch.ones(3), torch.ones(3)),
    }
    tensor = parts[kind]

    def values() -> Any:
        return (tensor.a if kind == "wrapper" else tensor.to_dense()).tolist()

    unwritten = tensor._version
    with restored_values([tensor]):
        pass
    assert tensor._version == unwritten
    with restored_values([tensor]):
        tensor.mul_(2)
        assert values() == [2, 2, 2]
    assert values() == [1, 1, 1]


def test_what_was_not_written_to_is_not_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    tensors = [*model.state_dict(keep_vars=True).values()]
    versions = [tensor._version for tensor in tensors]
    written: list[Tensor] = []
    copy = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda *args: written.append(args[0]) or copy(*args))  # type: ignore[func-returns-value]
    with restored_values(tensors):
        model(torch.randn(2, 3))
    assert sorted(t.numel() for t in written) == [8, 12, 12]  # bytes of BatchNorm's buffers
    assert [t._version - old for t, old in zip(tensors, versions, strict=True)][:4] == [0] * 4


def test_a_value_that_is_restored_is_one_that_was_written() -> None:
    tensor = torch.ones(3)
    with restored_values([tensor]):
        tensor.add_(1)
        after = tensor._version
    assert tensor._version > after


@pytest.mark.parametrize("columns", [False, True])
def test_what_lies_between_them_is_left_alone(columns: bool) -> None:
    table = torch.zeros(3, 3)
    parts = table.t() if columns else table
    versions = parts[0]._version
    with restored_values([parts[0], parts[2]]):
        parts[1].add_(1)
    assert parts.tolist() == [[0] * 3, [1] * 3, [0] * 3]
    with restored_values([parts[0].detach(), parts[2].detach()]):
        parts.add_(1)
    assert parts.tolist() == [[0] * 3, [2] * 3, [0] * 3]
    assert parts[0]._version > versions


def test_a_write_to_one_is_none_to_another_in_its_storage() -> None:
    """Whose value a pending backward may need."""
    columns = torch.ones(3, 2).t()
    written, saved = columns[0].detach(), columns[1].data.requires_grad_()
    product = (torch.ones(3, requires_grad=True) * saved).sum()
    with restored_values([written, saved]):
        written.add_(1)
    product.backward()
    assert columns.tolist() == [[1] * 3] * 2


@pytest.mark.parametrize("view", ["expanded", "overlapping"])
def test_tensors_whose_elements_share_memory_are_restored(view: str) -> None:
    base = torch.arange(8.0)
    tensor = VIEWS[view](base)
    with restored_values([tensor]):
        base.add_(1)
    assert tensor.tolist() == VIEWS[view](torch.arange(8.0)).tolist()


def test_what_is_between_distant_parts_of_a_storage_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[int] = []
    to = Tensor.to

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copied.append(tensor.numel() * tensor.itemsize)
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", counted)
    large = torch.zeros(10**6)
    with restored_values([large[:1], large[1:3], large[-1:]]):
        pass
    assert sum(copied) == 4 * large.itemsize


def test_an_error_in_restoring_one_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(storage: object, nbytes: int) -> NoReturn:
        raise RuntimeError("cannot be resized")

    tensors = [torch.ones(3) for _ in range(3)]

    def break_one() -> None:
        with restored_values(tensors):
            for tensor in tensors:
                tensor.add_(1)
            tensors[1].untyped_storage().resize_(0)
            monkeypatch.setattr(torch.UntypedStorage, "resize_", refuse)

    with pytest.raises(RuntimeError, match="cannot be resized"):
        break_one()
    assert [tensors[i].tolist() for i in (0, 2)] == [[1, 1, 1]] * 2
