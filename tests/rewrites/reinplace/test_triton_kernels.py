"""Launches of Triton kernels become operators; the kernels here are functions of CPU tensors.

`tests/scenarios/test_triton_kernels.py` has real ones.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS, kernel_source
from nimble_fx.rewrites.reinplace.reinplace_updates import reinplace_updates
from nimble_fx.rewrites.reinplace.wrapped_calls import wrapped_nodes
from nimble_fx.torch_internals import triton_calls
from nimble_fx.torch_internals.operators import KERNELS, schema_of
from nimble_fx.tracing.aten_to_tasks import trace
from tests.support.bits import assert_same_bits
from tests.support.triton_stubs import Kernel, scale, table, traced, wrapped

aten = torch.ops.aten


def into_new(x: Tensor) -> Tensor:
    out: Tensor = wrapped(scale, ["out"], x=x, out=torch.zeros_like(x), n=x.numel())["out"]
    return out.relu()


def times_five(x: Tensor) -> Tensor:
    out: Tensor = wrapped(scale, ["out"], 5, x=x, out=torch.zeros_like(x), n=x.numel())["out"]
    return out.relu()


def into_an_input(x: Tensor) -> Tensor:
    new = wrapped(scale, ["out"], x=x * 2, out=x, n=5)["out"]
    x.copy_(new)
    return new + 1


def into_what_is_read_later(x: Tensor) -> Any:
    old = x.relu()
    new = wrapped(scale, ["out"], x=x, out=old, n=5)["out"]
    return old + new


def into_a_part(x: Tensor) -> Any:
    out = torch.zeros_like(x)
    new = wrapped(scale, ["out"], x=x[1:], out=out[1:], n=3)["out"]
    return out.slice_scatter(new, 0, 1)


def into_a_row_of_an_input(x: Tensor) -> Any:
    row = x[1]
    new = wrapped(scale, ["out"], x=x[0] * 2, out=row, n=3)["out"]
    x.copy_(x.select_scatter(new, 0, 1))
    return new + 1


def into_a_row_that_is_read_later(x: Tensor) -> Any:
    row = x[1]
    new = wrapped(scale, ["out"], x=x[0] * 2, out=row, n=3)["out"]
    old = row + 1
    x.copy_(x.select_scatter(new, 0, 1))
    return old


def into_a_row_from_itself(x: Tensor) -> Any:
    row = x[1]
    new = wrapped(scale, ["out"], x=row, out=row, n=3)["out"]
    x.copy_(x.select_scatter(new, 0, 1))
    return new + 1


def into_another_row(x: Tensor) -> Any:
    new = wrapped(scale, ["out"], x=x[0] * 2, out=x[1], n=3)["out"]
    x.copy_(x.select_scatter(new, 0, 2))
    return new + 1


def into_a_row_that_is_returned(x: Tensor) -> Any:
    new = wrapped(scale, ["out"], x=x[0] * 2, out=x[1], n=3)["out"]
    x.copy_(x.select_scatter(new, 0, 1))
    return new


def _both(grid: Any, x: Tensor, one: Tensor, other: Tensor, factor: int) -> None:
    one.copy_(x * factor)
    other.add_(one.sum())


both = Kernel(_both, ("x", "one", "other", "factor"))


def into_two(x: Tensor) -> Any:
    results = wrapped(both, ["one", "other"], x=x, one=x.sin(), other=x.cos())
    return results["other"], results["one"]


def into_two_rows_of_an_input(x: Tensor) -> Any:
    results = wrapped(both, ["one", "other"], x=x[2], one=x[0], other=x[1])
    x.copy_(x.select_scatter(results["one"], 0, 0).select_scatter(results["other"], 0, 1))


def into_an_input_of_another_shape(x: Tensor) -> Any:
    new = wrapped(scale, ["out"], x=x * 2, out=x.view(-1), n=5)["out"]
    x.copy_(new.view(3, 4))


PROGRAMS = {
    into_new: 0,
    into_an_input: 0,
    into_what_is_read_later: 1,
    into_a_part: 0,
    into_a_row_of_an_input: 0,
    into_a_row_that_is_read_later: 1,
    into_a_row_from_itself: 1,
    into_another_row: 1,
    into_a_row_that_is_returned: 1,
    into_two: 0,
    into_two_rows_of_an_input: 0,
    into_an_input_of_another_shape: 0,
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_they_write_what_the_wrapper_writes(program: Callable[..., Any], mode: str) -> None:
    gm = traced(program, torch.randn(3, 4), mode)
    unwrapped = reinplace_updates(gm)
    assert not wrapped_nodes(unwrapped.graph)
    for _ in range(2):
        x = torch.randn(3, 4)
        ours, expected = x.clone(), x.clone()
        assert_same_bits(unwrapped(ours), gm(expected))
        assert_same_bits(ours, expected)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_copies_are_made_only_where_they_make_a_difference(program: Callable[..., Any]) -> None:
    unwrapped = reinplace_updates(traced(program, torch.randn(3, 4)))
    copies = unwrapped.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert len(copies) == PROGRAMS[program]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x,
    "flat": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "first row": lambda x: x[0],
    "second row": lambda x: x[1],
    "last row": lambda x: x[2],
    "rows": lambda x: x[1:],
    "columns": lambda x: x[:, :2],
    "an element": lambda x: x[0, 1],
}
Place = tuple[int, str]
"""One of two tensors, and a view of it."""


grow = Kernel(lambda grid, x, out, factor: out.mul_(factor).add_(x), ("x", "out", "factor"))


def launched(kernel: Kernel, **kwargs: Any) -> None:
    triton_calls._launch(
        kernel_idx=table.add_kernel(kernel),
        constant_args_idx=table.add_constant_args({"factor": 3}),
        grid=[(1, 1, 1)],
        tma_descriptor_metadata={},
        kwargs=kwargs,
    )


STATEMENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "two": lambda a, b, c: launched(both, x=a.sum() + 1, one=b, other=c),
    "one": lambda a, b, c: launched(grow, x=c.sum(), out=a),
    "in place": lambda a, b, c: a.mul_(2),
    "by another": lambda a, b, c: a.add_(b.sum()),
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    statements=st.lists(
        st.tuples(
            st.sampled_from(sorted(STATEMENTS)),
            *[st.tuples(st.integers(0, 1), st.sampled_from(sorted(VIEWS)))] * 3,
        ),
        min_size=1,
        max_size=4,
    ),
    read=st.tuples(st.integers(0, 1), st.sampled_from(sorted(VIEWS))),
)
@pytest.mark.filterwarnings("ignore:Encountered an exception in identify_mutated_tensors")
def test_launches_on_views_leave_every_bit_as_the_wrappers_do(
    statements: list[tuple[str, Place, Place, Place]], read: Place
) -> None:
    """Functionalized as in a compile; without Triton's code, all arguments count as written."""

    def run(x: Tensor) -> Tensor:
        tensors = x, x + 1
        for statement, *places in statements:
            STATEMENTS[statement](*(VIEWS[view](tensors[i]) for i, view in places))
        return VIEWS[read[1]](tensors[read[0]]).exp()

    x = torch.randn(3, 4)
    ours, expected = x.clone(), x.clone()
    gm = make_fx(torch.func.functionalize(run), tracing_mode="fake")(x)
    assert_same_bits(reinplace_updates(gm)(ours), gm(expected))
    assert_same_bits(ours, expected)


def test_the_operator_has_the_kernels_name_and_text() -> None:
    unwrapped = reinplace_updates(traced(into_new, torch.randn(3, 4)))
    (operator,) = [n.target for n in unwrapped.graph.nodes if KERNELS in str(n.target)]
    name = operator.__name__.removesuffix(".default")
    assert name.startswith("stub_")
    assert kernel_source(name) == "text of _scale"
    written = [each.alias_info is not None for each in schema_of(operator).arguments]
    assert written == [False, True]


def test_a_kernel_with_another_constant_is_another_operator() -> None:
    x = torch.randn(3, 4)
    for program, factor in ((into_new, 3), (times_five, 5)):
        expected = (x * factor + 1).relu()
        assert_same_bits(reinplace_updates(traced(program, x))(x), expected)


def test_a_kernel_is_launched_after_the_table_of_kernels_was_emptied() -> None:
    gm = traced(into_new, torch.randn(3, 4))
    unwrapped, x = reinplace_updates(gm), torch.randn(3, 4)
    expected = gm(x)
    table.reset_table()
    table.add_kernel(Kernel(lambda *_: None, ()))
    table.add_constant_args({"factor": 5})
    assert_same_bits(unwrapped(x), expected)


def test_kernels_of_one_name_and_text_are_two() -> None:
    def adding(n: int) -> Callable[[Tensor], Any]:
        def add(grid: Any, x: Tensor, out: Tensor, factor: int) -> None:
            out.copy_(x + n)

        kernel = Kernel(add, ("x", "out", "factor"))
        return lambda x: wrapped(kernel, ["out"], x=x, out=x.sin())["out"]

    x = torch.randn(3, 4)
    for n in (1, 2):
        assert_same_bits(reinplace_updates(traced(adding(n), x))(x), x + n)


def test_a_number_that_depends_on_symbolic_sizes_is_passed() -> None:
    def program(x: Tensor) -> Any:
        n = x.shape[0] ** 0.5 + x.shape[1]
        return wrapped(scale, ["out"], x=x, out=x.sin(), n=int(n))["out"] * n

    def by_number(grid: Any, out: Tensor, n: float, factor: int) -> None:
        out.fill_(n * factor)

    kernel = Kernel(by_number, ("out", "n", "factor"))

    def with_float(x: Tensor) -> Any:
        return wrapped(kernel, ["out"], out=x.sin(), n=x.shape[0] ** 0.5)["out"]

    for each in (program, with_float):
        gm = traced(each, torch.randn(3, 4), "symbolic")
        unwrapped = reinplace_updates(gm)
        assert not wrapped_nodes(unwrapped.graph)
        x = torch.randn(5, 4)
        assert_same_bits(unwrapped(x), gm(x))


def test_a_descriptor_with_symbolic_sizes_stays_wrapped() -> None:
    def program(x: Tensor) -> Any:
        descriptors = {"x": ("experimental", ([x.shape[0]], [16], 4))}
        results = wrapped(scale, ["out"], 3, descriptors, x=x, out=x.sin(), n=3)
        return results["out"]

    gm = traced(program, torch.randn(3, 4), "symbolic")
    with pytest.raises(UnsupportedError, match="kernel stub has a descriptor with symbolic sizes"):
        trace(reinplace_updates(gm))


def test_a_tensor_of_symbolic_sizes_with_gaps_stays_wrapped() -> None:
    def program(x: Tensor) -> Any:
        return wrapped(scale, ["out"], x=x, out=x[:, ::2], n=2)["out"]

    gm = traced(program, torch.randn(3, 4), "symbolic")
    with pytest.raises(UnsupportedError, match="writes to out, a tensor of symbolic sizes"):
        trace(reinplace_updates(gm))


def test_more_tensors_than_an_operator_takes_stay_wrapped() -> None:
    names = [f"x{i}" for i in range(MAX_PARAMETERS)]

    def add_all(grid: Any, out: Tensor, *xs: Tensor, factor: int) -> None:
        out.copy_(sum(xs, start=torch.zeros_like(out)))

    kernel = Kernel(add_all, ("out", *names))

    def program(x: Tensor) -> Any:
        xs: dict[str, Any] = dict.fromkeys(names, x)
        return wrapped(kernel, ["out"], out=x.sin(), **xs)["out"]

    x = torch.randn(3)
    gm = traced(program, x)
    unwrapped = reinplace_updates(gm)
    assert_same_bits(unwrapped(x), gm(x))
    with pytest.raises(UnsupportedError, match="takes 65 tensors and numbers, more than 64"):
        trace(unwrapped)
