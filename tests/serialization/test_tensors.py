"""Tensors as text: every dtype, any strides, bit for bit."""

import base64

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Input
from nimble_fx.ir.types import ScalarType, TensorType
from nimble_fx.serialization.arguments import DTYPES
from nimble_fx.serialization.json_field import Field
from nimble_fx.serialization.tensors import decode_tensor, encode_tensor

CPU = torch.device("cpu")
Geometry = tuple[tuple[int, ...], tuple[int, ...]]
GEOMETRIES: dict[str, Geometry] = {
    "plain": ((3, 4), (4, 1)),
    "transposed": ((4, 3), (1, 4)),
    "expanded": ((2, 3), (0, 1)),
    "scalar": ((), ()),
    "empty": ((0, 3), (3, 1)),
    "with gaps": ((2, 2), (6, 2)),
    "overlapping": ((3, 3), (1, 1)),
}


def of(tensor: Tensor) -> Input:
    kind = tuple(tensor.shape), tensor.stride(), tensor.dtype, CPU
    return Input("c", TensorType(*kind, tensor.is_conj(), tensor.is_neg()), ("c",))


def bits(tensor: Tensor) -> bytes:
    """The bytes of the elements, one by one."""
    size = tensor.itemsize
    memory = bytes(tensor.untyped_storage().tolist())
    places = torch.arange(len(memory) // size).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )
    return b"".join(memory[i * size : (i + 1) * size] for i in places.flatten().tolist())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_tensor_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    memory = torch.randint(0, 256, (1024,), dtype=torch.uint8).view(dtype)
    for name, (shape, stride) in GEOMETRIES.items():
        tensor = memory.as_strided(shape, stride, 3)
        back = decode_tensor(Field(encode_tensor(tensor, of(tensor))), of(tensor))
        assert (back.shape, back.stride(), back.dtype) == (shape, stride, dtype), name
        assert bits(back) == bits(tensor), name


def test_what_lies_between_elements_is_not_written() -> None:
    tensor = torch.arange(1, 13, dtype=torch.uint8).as_strided((2, 2), (6, 2), 3)
    written = list(base64.b64decode(encode_tensor(tensor, of(tensor))))
    assert written == [4, 0, 6, 0, 0, 0, 10, 0, 12]


def test_what_is_conjugated_or_negated_lazily_is_so_again() -> None:
    conjugated = torch.tensor([1 + 2j, 3 - 4j]).conj()
    for tensor in (conjugated, conjugated.imag):
        back = decode_tensor(Field(encode_tensor(tensor, of(tensor))), of(tensor))
        assert back.tolist() == tensor.tolist()
        assert (back.is_conj(), back.is_neg()) == (tensor.is_conj(), tensor.is_neg())


def test_the_callers_modes_do_not_matter() -> None:
    tensor = torch.arange(3)
    with torch.device("meta"), FakeTensorMode():
        text = encode_tensor(tensor, of(tensor))
        back = decode_tensor(Field(text), of(tensor))
    assert back.tolist() == [0, 1, 2]


def test_a_tensor_of_another_type_cannot_be_stored() -> None:
    with pytest.raises(FileError, match="constant c is"):
        encode_tensor(torch.ones(2), of(torch.ones(3)))
    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(FileError, match="constant c is a FakeTensor"):
        encode_tensor(fake, of(torch.ones(3)))


@pytest.mark.parametrize("data", ["", "AAAA", "AAAAAA==", "!AAAAAA=", "AAAAAA==\n", "é", 7, None])
def test_other_bytes_are_refused(data: object) -> None:
    four = torch.zeros(4, dtype=torch.uint8)
    assert decode_tensor(Field("AAAAAA=="), of(four)).tolist() == [0, 0, 0, 0]
    with pytest.raises(FileError, match="values"):
        decode_tensor(Field(data, "values"), of(torch.zeros(5, dtype=torch.uint8)))


def test_a_constant_is_a_tensor_of_known_sizes() -> None:
    for unknown in (None, ScalarType("7"), TensorType(("s0",), (1,), torch.int8, CPU)):
        with pytest.raises(FileError, match="not a constant"):
            decode_tensor(Field("AA=="), Input("c", unknown))
