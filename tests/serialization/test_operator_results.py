"""Calls on fake tensors: each argument has a result of its own, and no layout may change."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.ir.types import TensorType
from nimble_fx.serialization.operator_results import OperatorResults
from nimble_fx.torch_internals.names import OpOverload

aten = torch.ops.aten


def type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


@given(st.permutations([1, 1.0, True, 0, 0.0, False, float("nan")]))
def test_equal_arguments_of_other_types_have_results_of_their_own(numbers: list[float]) -> None:
    x, results = torch.ones(2, dtype=torch.int64), OperatorResults()
    for number in [*numbers, *numbers]:
        found = results.of(aten.mul.Scalar, (type_of(x), number), {})
        assert found.type == type_of(aten.mul.Scalar(x, number))


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (aten.transpose_.default, (1, 2)),
        (aten.transpose_.default, (0, 1)),
        (aten.squeeze_.default, ()),
        (aten.unsqueeze_.default, (0,)),
        (aten.as_strided_.default, ((1, 1, 1), (1, 1, 1))),
        (aten.as_strided_.default, ((1, 2, 2), (4, 1, 2))),
        (aten.as_strided_.default, ((1, 1, 2), (4, 2, 1))),
    ],
)
def test_a_call_that_changes_how_an_argument_lies_in_memory_is_an_error(
    operator: OpOverload, args: tuple[object, ...]
) -> None:
    with pytest.raises(ValueError, match="changes the shape or strides"):
        OperatorResults().of(operator, (type_of(torch.empty(1, 2, 2)), *args), {})


def test_pytorch_logs_no_error_of_an_operator_that_does_not_take_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    matrix = type_of(torch.ones(2, 2))
    with pytest.raises(RuntimeError):
        OperatorResults().of(aten.bmm.default, (matrix, matrix), {})
    assert caplog.records == []
    logging.getLogger("torch._subclasses.fake_tensor").error("later")
    assert len(caplog.records) == 1
