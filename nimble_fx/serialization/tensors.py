"""Tensors as text and back, bit for bit, with any dtype and strides."""

import base64
import binascii
from ctypes import string_at

import torch
from torch import Tensor

from nimble_fx.errors import FileError
from nimble_fx.ir.symbolic_sizes import extent
from nimble_fx.ir.task_graph import Input
from nimble_fx.ir.types import TensorType
from nimble_fx.serialization.json_field import Field
from nimble_fx.torch_internals.names import disable_modes
from nimble_fx.torch_internals.storages import with_math_bits

_NO_BYTES = torch.empty(0, dtype=torch.uint8, device="cpu")


def encode_tensor(tensor: Tensor, of: Input) -> str:
    """The bytes of a tensor's memory, from its first element to its last, in base64.

    Memory between elements, which other tensors may use, is written as zeros.

    Args:
        tensor: the value of the constant.
        of: the constant, whose type says how to read the bytes.

    Raises:
        FileError: the tensor does not have the constant's type.
    """
    with disable_modes():  # a compile runs in a mode in which tensors have no values
        plain = with_math_bits(tensor.detach(), tensor.is_conj(), tensor.is_neg())
        if type(plain) is not Tensor:
            raise FileError(f"constant {of.name} is a {type(plain).__name__}: it cannot be stored")
        geometry = (tuple(plain.shape), plain.stride(), plain.dtype)
        if not isinstance(of.type, TensorType) or geometry != _geometry(of.type):
            raise FileError(f"constant {of.name} is {geometry}, not {of.type}: it cannot be stored")
        return base64.b64encode(_bytes(plain)).decode("ascii")


def decode_tensor(field: Field, of: Input) -> Tensor:
    """The value of a constant from its bytes, on the constant's device.

    Raises:
        FileError: the number of bytes is wrong, or the type is not that of a plain tensor.
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
    if len(data) != extent(shape, stride) * dtype.itemsize:
        raise field.error(f"the bytes of {of.type}: it has {len(data)}")
    with disable_modes():
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else _NO_BYTES
        plain = flat.view(dtype).to(of.type.device).as_strided(shape, stride)
        return with_math_bits(plain, of.type.is_conj, of.type.is_neg)


def _bytes(tensor: Tensor) -> bytes:
    """The bytes from the first element to the last, with zeros between elements."""
    shape, stride = tensor.shape, tensor.stride()
    n = extent(shape, stride)
    elements = tensor.as_strided((n,), (1,)).cpu().contiguous().view(torch.uint8)
    used = torch.arange(n, device="cpu").as_strided(shape, stride).flatten()
    elements = elements.reshape(n, tensor.itemsize)
    clean = torch.zeros_like(elements)
    clean[used] = elements[used]
    return string_at(clean.data_ptr(), clean.nbytes)  # without NumPy, which PyTorch does not need


def _geometry(of: TensorType) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(map(int, of.shape)), tuple(map(int, of.stride)), of.dtype
