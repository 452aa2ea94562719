"""A kernel's operator does what its schema says, according to PyTorch's own checks."""

from collections.abc import Sequence
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.errors import OperatorError, UnsupportedError
from nimble_fx.rewrites.inductor.kernel_operators import (
    has_layout,
    kernel_operator,
)
from nimble_fx.rewrites.inductor.kernel_signature import (
    Argument,
    NewTensor,
    Signature,
    Taken,
    ViewLayout,
)
from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS, kernel_source
from nimble_fx.torch_internals.names import OpOverload

NEW = NewTensor((2, 3), (3, 1), torch.float32, "cpu")
TEXTS = count()


def add_into(x: Tensor, out: Tensor) -> None:
    """A kernel: `out = x + 1`."""
    torch.add(x, 1, out=out)


def made(
    *written: bool, new: int, arguments: Sequence[Argument | int], kernel: object
) -> OpOverload:
    taken = tuple(Taken((2, 3), (3, 1), torch.float32, each) for each in written)
    signature = Signature(taken, (NEW,) * new, tuple(arguments))
    return kernel_operator("cpp_fused_test_0", kernel, f"text {next(TEXTS)}", signature)  # type: ignore[arg-type]


def test_what_a_kernel_is_the_first_to_write_is_allocated_and_returned() -> None:
    operator = made(
        False, new=1, arguments=[Argument(False, 0), Argument(True, 0)], kernel=add_into
    )
    x = torch.randn(2, 3)
    assert torch.equal(operator(x), x + 1)
    torch.library.opcheck(operator, (x,))


def test_several_new_tensors_are_a_tuple() -> None:
    def both(one: Tensor, other: Tensor) -> None:
        one.fill_(1)
        other.fill_(2)

    operator = made(new=2, arguments=[Argument(True, 1), Argument(True, 0)], kernel=both)
    two, one = operator()
    assert torch.equal(one, torch.ones(2, 3))
    assert torch.equal(two, torch.full((2, 3), 2.0))


def test_what_a_kernel_writes_besides_is_in_the_schema() -> None:
    arguments = [Argument(False, 0), Argument(False, 1)]
    operator = made(False, True, new=0, arguments=arguments, kernel=add_into)
    x, out = torch.randn(2, 3), torch.zeros(2, 3)
    operator(x, out)
    assert torch.equal(out, x + 1)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator, (x, out), test_utils=checks)
    lies = made(False, False, new=0, arguments=arguments, kernel=add_into)
    with pytest.raises(Exception, match="mutated"):
        torch.library.opcheck(lies, (x, torch.zeros(2, 3)), test_utils=checks)


def test_a_kernel_sees_the_part_that_it_is_given_wherever_the_memory_begins() -> None:
    part = ViewLayout((3,), (1,), 3)
    arguments = [Argument(False, 0, part), Argument(True, 0, part)]
    operator = made(False, new=1, arguments=arguments, kernel=add_into)
    x = torch.arange(10.0)[4:].view(2, 3)
    assert torch.equal(operator(x)[1], x[1] + 1)


@pytest.mark.parametrize("n", [MAX_PARAMETERS, MAX_PARAMETERS + 1, 3 * MAX_PARAMETERS])
def test_a_kernel_takes_and_makes_any_number_of_tensors(n: int) -> None:
    def numbered(*tensors: Tensor) -> None:
        for x, out in zip(tensors[:n], tensors[n:], strict=True):
            torch.add(x, 1, out=out)

    arguments = [Argument(is_new, i) for is_new in (False, True) for i in range(n)]
    operator = made(*[False] * n, new=n, arguments=arguments, kernel=numbered)
    xs = [torch.full((2, 3), float(i)) for i in range(n)]
    given = xs if n == MAX_PARAMETERS else [xs]
    assert all(torch.equal(out, x + 1) for x, out in zip(xs, operator(*given), strict=True))
    torch.library.opcheck(operator, tuple(given))


def test_a_kernel_that_writes_to_more_tensors_than_an_operator_may_take_is_unsupported() -> None:
    n = MAX_PARAMETERS + 1
    arguments = [Argument(False, i) for i in range(n)]
    fewer = made(False, *[True] * (n - 2), new=0, arguments=arguments[1:], kernel=print)
    assert len(fewer._schema.arguments) == n - 1
    with pytest.raises(UnsupportedError, match="kernel cpp_fused_test_0 writes to more tensors"):
        made(*[True] * n, new=0, arguments=arguments, kernel=print)


def test_a_tensor_of_another_type_or_layout_is_refused() -> None:
    operator = made(
        False, new=1, arguments=[Argument(False, 0), Argument(True, 0)], kernel=add_into
    )
    for x in (torch.randn(3, 2).t(), torch.randn(2, 2), torch.randn(6)):
        with pytest.raises(OperatorError, match=r"the sizes \(2, 3\) and the strides \(3, 1\) was"):
            operator(x)
    with pytest.raises(OperatorError, match=r"for torch.float32.* called with torch.float16"):
        operator(torch.randn(2, 3).half())


@given(st.data())
def test_layouts_are_the_same_where_all_elements_are_at_the_same_places(
    data: st.DataObject,
) -> None:
    size = data.draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    strides = st.tuples(*[st.integers(1, 4)] * len(size))
    one, other = data.draw(strides), data.draw(strides)
    offsets = [torch.arange(40).as_strided(size, stride) for stride in (one, other)]
    x = torch.empty(40).as_strided(size, one)
    assert has_layout(x, size, other) == torch.equal(*offsets)


def test_numbers_are_handed_to_the_kernel() -> None:
    arguments: list[Argument | int] = [Argument(True, 0), 7]
    operator = made(new=1, arguments=arguments, kernel=lambda out, n: out.fill_(n))
    assert torch.equal(operator(), torch.full((2, 3), 7.0))


def test_symbolic_sizes_are_parameters() -> None:
    """The kernel gets a part of what the operator allocates, at the sizes of each call."""

    def halves(x: Tensor, half: Tensor, n: int) -> None:
        torch.mul(x, n, out=half)

    signature = Signature(
        (Taken(("s1", "s0"), ("s0", 1), torch.float32, is_written=False),),
        (NewTensor(("2 * s1", "s0"), ("s0", 1), torch.float32, "cpu"),),
        (
            Argument(False, 0),
            Argument(True, 0, ViewLayout(("s1", "s0"), ("s0", 1), "s0 * s1")),
            "s0",
        ),
    )
    operator = kernel_operator("cpp_fused_test_0", halves, f"text {next(TEXTS)}", signature)
    for rows, columns in ((2, 3), (4, 5), (2, 3)):
        x = torch.randn(rows, columns)
        result = operator(x, columns, rows)
        assert result.shape == (2 * rows, columns)
        assert torch.equal(result[rows:], x * columns)
        torch.library.opcheck(operator, (x, columns, rows), test_utils=("test_schema",))
    with pytest.raises(OperatorError, match=r"the sizes \(2, 3\)"):
        operator(torch.randn(3, 2), 3, 2)


@pytest.mark.parametrize("n", [MAX_PARAMETERS - 1, MAX_PARAMETERS, MAX_PARAMETERS + 1])
def test_symbols_count_among_the_parameters(n: int) -> None:
    def total(*tensors: Tensor) -> None:
        torch.sum(torch.stack(tensors[:-1]), 0, out=tensors[-1])

    signature = Signature(
        (Taken(("s0",), (1,), torch.float32, is_written=False),) * n,
        (NewTensor(("s0",), (1,), torch.float32, "cpu"),),
        (*[Argument(False, i) for i in range(n)], Argument(True, 0)),
    )
    operator = kernel_operator("cpp_fused_test_0", total, f"text {next(TEXTS)}", signature)
    for size in (2, 5):
        xs = [torch.full((size,), float(i)) for i in range(n)]
        result = operator(*signature.operator_arguments(xs), size)
        assert torch.equal(result, torch.full((size,), float(sum(range(n)))))


def test_a_kernel_is_registered_once_and_its_text_is_kept() -> None:
    taken = Taken((2, 3), (3, 1), torch.float32, is_written=False)
    signature = Signature((taken,), (NEW,), (Argument(False, 0), Argument(True, 0)))
    one, same = (kernel_operator("cpp_fused_a_0", add_into, "text", signature) for _ in range(2))
    other = kernel_operator("cpp_fused_a_0", add_into, "another text", signature)
    assert one is same
    assert one is not other
    assert kernel_source(one.__name__.removesuffix(".default")) == "text"
