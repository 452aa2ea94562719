"""Arguments as JSON, to the bit."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Ref
from nimble_fx.serialization.arguments import MAX_DEPTH, decode_argument, encode_argument
from nimble_fx.serialization.json_field import Field

LITERALS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.sampled_from([torch.float8_e5m2, torch.complex32, torch.bool, torch.bits8])
    | st.sampled_from([torch.device("cpu"), torch.device("cuda:3"), torch.device("meta")])
    | st.sampled_from([torch.strided, torch.channels_last, torch.preserve_format])
    | st.sampled_from([Ref("x"), Ref("π")])
)
BOUNDS = st.none() | st.integers(-9, 9) | st.just(Ref("n"))
ARGUMENTS = st.recursive(
    LITERALS | st.builds(slice, BOUNDS, BOUNDS, BOUNDS),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


def decoded(value: Any) -> Any:
    return decode_argument(Field(value, "arg"))


@given(ARGUMENTS)
def test_an_argument_comes_back_to_the_bit(arg: Any) -> None:
    text = json.dumps(encode_argument(arg), allow_nan=False)
    assert repr(decoded(json.loads(text))) == repr(arg)


@pytest.mark.parametrize("value", [-0.0, complex(-0.0, float("nan")), float("-inf"), 5e-324, True])
def test_what_equality_does_not_tell_apart_comes_back(value: Any) -> None:
    assert repr(decoded(encode_argument(value))) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"value": "x", "float": "nan"},
        {"value": "x y"},
        {"float": "1.0"},
        {"float": ["nan"]},
        {"complex": [1.0]},
        {"complex": [1, 2]},
        {"slice": [1, 2]},
        {"slice": "123"},
        {"dtype": "strided"},
        {"dtype": ["float32"]},
        {"layout": "float32"},
        {"device": "cpu\n"},
        {"device": "tpu"},
        {"eval": "1"},
        2**64,
        float("inf"),
        "\udc00",
    ],
)
def test_what_stands_for_no_argument_is_refused(value: Any) -> None:
    with pytest.raises(FileError, match="arg"):
        decoded(value)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"slice": [x, None, None]}])
def test_depth_is_limited(wrap: Any) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    decoded(value)
    with pytest.raises(FileError, match="nested at most"):
        decoded(wrap(value))


def test_an_argument_of_another_type_cannot_be_stored() -> None:
    with pytest.raises(FileError, match="of type object cannot be stored"):
        encode_argument(object())
