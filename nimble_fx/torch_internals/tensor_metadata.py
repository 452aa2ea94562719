"""What describes a strided tensor besides its storage."""

from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage

from nimble_fx.torch_internals.storages import with_math_bits


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """What describes a strided tensor besides its storage; the offset counts elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: Tensor) -> "TensorMetadata":
        """The metadata of a tensor."""
        return TensorMetadata(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def on(self, storage: UntypedStorage) -> Tensor:
        """A tensor with this metadata in a storage."""
        bare = torch.empty(0, dtype=self.dtype, device=storage.device)
        bare.set_(storage, self.offset, self.shape, self.stride)
        return with_math_bits(bare, self.is_conj, self.is_neg)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)} and strides {list(self.stride)}"
