"""Parsed emitted modules: names, arguments, and what operators do to their arguments."""

import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import nimble_fx
from nimble_fx.codegen.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.verify import verify_source
from tests.support.schedules import schedule_of, two_branches

RELU = r"aten\.relu\.default\(x_1\)"
ADDED = r"\(relu, sigmoid\)"


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"N_STREAMS = 2", f"N_STREAMS = {10**12}", f"N_STREAMS is {10**12}, but call has 2"),
        (r"N_STREAMS = 2", "N_STREAMS = True", "N_STREAMS is True, not a number"),
        (r"    s0, s1 = ", "    s0, s1 = s0, s1 = ", "no such statement"),
        (r"x_1", "s0", "s0 is another value's name"),
        (r"relu = ", "s1 = ", "s1 is already another value's name, or reserved"),
        (r"(    x_1 = .*\n)(    inputs\.clear.*\n)", r"\2\1", "until cleared"),
        (RELU, "torch.typename(1)", "no operator torch.typename"),
        (RELU, "aten.relu.default(~1)", "neither a value nor a literal"),
        (ADDED, "(relu, sigmoid, other=sigmoid)", "does not take these arguments"),
    ],
)
def test_a_text_with_other_names_or_arguments_is_refused(
    pattern: str, replacement: str, message: str
) -> None:
    text = emit(schedule_of(two_branches, torch.randn(2, 4)))
    changed = re.sub(pattern, replacement, text)
    assert changed != text
    with pytest.raises(ScheduleError, match=message):
        verify_source(changed)


def writes_one_tensor_twice(x: Tensor) -> Tensor:
    y = x.sin()
    torch._foreach_add_([y, y.t()], 1)
    return y


def normalizes_without_weights(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True).sin()


@pytest.mark.parametrize(
    "program",
    [
        writes_one_tensor_twice,
        normalizes_without_weights,
        lambda x: (x.exp().new_zeros(3) + 1, x.sin()),
        lambda x: torch.zeros_like(x) + x,
    ],
    ids=["one storage twice", "optional tensors", "new_zeros", "zeros_like"],
)
def test_what_operators_do_to_their_arguments_follows_from_schemas(program: object) -> None:
    graph = schedule_of(program, torch.randn(3, 3))  # type: ignore[arg-type]
    verify_source(emit(graph))
    verify_source(emit(graph), graph)


def test_items_that_are_used_are_read_where_some_are_not() -> None:
    def apart(x: Tensor) -> tuple[Tensor, ...]:
        parts = x.sin().split(2)
        return parts[0].exp() + parts[2].cos(), x.tan()

    (program,) = nimble_fx.compile(apart, torch.randn(6), policy="nimble").programs
    verify_source(program.source)
    verify_source(program.source, program.graph)
