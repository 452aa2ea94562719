"""A tensor's storage and its metadata make the same tensor again."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.torch_internals.tensor_metadata import TensorMetadata

VIEWS = {
    "transposed": lambda x: x.transpose(0, 1),
    "every other": lambda x: x[::2],
    "from the second": lambda x: x[1:],
    "diagonal": lambda x: x.diagonal()[None],
    "expanded": lambda x: x[:1].expand(min(3, len(x)), *x.shape[1:]),
    "conjugate": lambda x: x.conj(),
    "imaginary part of the conjugate": lambda x: x.conj().imag if x.is_complex() else x,
    "as bytes": lambda x: x if x.is_conj() or x.is_neg() else dense(x).view(torch.uint8),
}
DTYPES = torch.float32, torch.float64, torch.complex64, torch.int16


@given(
    shape=st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)),
    dtype=st.sampled_from(DTYPES),
    views=st.lists(st.sampled_from(sorted(VIEWS)), max_size=4),
)
def test_a_tensor_is_its_storage_and_its_metadata(
    shape: tuple[int, ...], dtype: torch.dtype, views: list[str]
) -> None:
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    x = x * (1 + 2j) if dtype.is_complex else x
    for view in views:
        x = VIEWS[view](x)

    again = TensorMetadata.of(x).on(x.untyped_storage())

    assert described(again) == described(x)
    torch.testing.assert_close(again, x, rtol=0, atol=0, check_stride=True)


def dense(x: Tensor) -> Tensor:
    """A copy with the strides of a new tensor, also where `x` has one element or none."""
    return x.clone(memory_format=torch.contiguous_format)


def described(x: Tensor) -> tuple[Any, ...]:
    """What PyTorch itself says of a tensor's place and type."""
    place = x.untyped_storage().data_ptr(), x.storage_offset(), x.shape, x.stride()
    return *place, x.dtype, x.is_conj(), x.is_neg()
