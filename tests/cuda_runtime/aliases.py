"""CPU tensors on the memory of CUDA tensors, which on the stand-in is host memory."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")


def alias(tensor: Tensor) -> Tensor:
    """A CPU tensor on the memory of a CUDA tensor, which it does not keep alive."""
    storage = tensor.untyped_storage()
    bare = torch.empty(0, dtype=tensor.dtype, device=CPU)
    if storage.nbytes() == 0:
        return bare.new_empty(tensor.size())
    memory: Any = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), CPU, storage.nbytes()
    )
    bare.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    torch._C._set_conj(bare, tensor.is_conj())
    torch._C._set_neg(bare, tensor.is_neg())
    return bare


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def on_cpu(value: Any, written: set[int]) -> Any:
    """Arguments for a CPU kernel, on the same memory.

    A tensor of the CPU is read when the kernel is launched, as a GPU's kernel gets its value then,
    unless it is among those that are written, by identity.
    """
    if isinstance(value, Tensor):
        if value.is_cuda:
            return alias(value)
        return value if id(value) in written else value.clone()
    if isinstance(value, (list, tuple)):
        return [on_cpu(each, written) for each in value]
    if isinstance(value, torch.device):
        return CPU
    if isinstance(value, torch.Generator):
        return None
    return value
