"""Tensors as text and back, bit for bit, whatever their dtype and strides."""

import base64
import binascii
from collections.abc import Iterable

import torch
from torch import Tensor

from nimble_fx.errors import FileError
from nimble_fx.files.field import Field
from nimble_fx.ir import Input, TensorType


def encode_tensor(tensor: Tensor, of: Input) -> str:
    """The bytes of its memory, from its first element to its last, in base64.

    Memory between elements, which other tensors may lie in, is written as zeros.

    Args:
        tensor: what the constant holds.
        of: the constant, whose type says how the bytes are read.

    Raises:
        FileError: the tensor is not of the constant's type.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    geometry = (tuple(plain.shape), plain.stride(), plain.dtype)
    if not isinstance(of.type, TensorType) or geometry != _geometry(of.type):
        raise FileError(f"constant {of.name} is {geometry}, not {of.type}: it cannot be stored")
    n = _span(plain.shape, plain.stride())
    span = plain.as_strided((n,), (1,)).cpu().contiguous()
    if not n:
        return ""
    elements = span.view(torch.uint8).reshape(n, -1)
    used = torch.arange(n).as_strided(plain.shape, plain.stride()).flatten()
    clean = torch.zeros_like(elements)
    clean[used] = elements[used]
    return base64.b64encode(clean.numpy().tobytes()).decode("ascii")


def decode_tensor(field: Field, of: Input) -> Tensor:
    """The tensor of a constant's type that has the bytes, on the constant's device.

    Raises:
        FileError: the bytes are not that many, or the type is no plain tensor's.
    """
    if not isinstance(of.type, TensorType) or not all(
        type(n) is int for n in (*of.type.shape, *of.type.stride)
    ):
        raise field.error(f"a constant: its type is {of.type}")
    shape, stride, dtype = _geometry(of.type)
    try:
        data = base64.b64decode(field.text(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise field.error("base64") from error
    if len(data) != _span(shape, stride) * dtype.itemsize:
        raise field.error(f"the bytes of {of.type}: it has {len(data)}")
    if not data:
        return torch.empty_strided(shape, stride, dtype=dtype, device=of.type.device)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)
    return flat.to(of.type.device).as_strided(shape, stride)


def _geometry(of: TensorType) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(map(int, of.shape)), tuple(map(int, of.stride)), of.dtype


def _span(shape: Iterable[int], stride: Iterable[int]) -> int:
    """How many elements lie from the first of a tensor to its last."""
    steps = list(zip(shape, stride, strict=True))
    return 1 + sum((n - 1) * step for n, step in steps) if all(n for n, _ in steps) else 0
