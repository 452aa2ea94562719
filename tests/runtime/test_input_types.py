"""Weights are checked before kernels use their memory."""

import pytest
import torch
from torch import Tensor

from nimble_fx.errors import InputError
from nimble_fx.ir.task_graph import Input
from nimble_fx.runtime.input_types import check_weights
from tests.support.schedules import traced


def input_of(weight: Tensor) -> Input:
    (value,) = traced(torch.relu, weight).graph.inputs
    return value


@pytest.mark.parametrize("n_bytes_missing", [1, 8, 16])
def test_a_weight_at_an_offset_needs_its_memory_to_its_end(n_bytes_missing: int) -> None:
    memory = torch.randn(6)
    weight = memory[2:]
    value = input_of(weight)
    check_weights([value], {}, [weight])
    memory.untyped_storage().resize_(24 - n_bytes_missing)
    with pytest.raises(
        InputError, match=rf"needs 24 bytes of a storage that has {24 - n_bytes_missing}"
    ):
        check_weights([value], {}, [weight])


def test_a_weight_with_gaps_needs_its_last_element() -> None:
    memory = torch.randn(3, 4)
    weight = memory[:, :2]
    value = input_of(weight)
    memory.untyped_storage().resize_(40)  # up to the last element
    check_weights([value], {}, [weight])
    memory.untyped_storage().resize_(36)
    with pytest.raises(InputError, match="needs 40 bytes"):
        check_weights([value], {}, [weight])
