"""Layouts are those of real tensors; symbolic sizes count as in the call, without guards."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nimble_fx.rewrites.layout import Layout
from nimble_fx.torch_internals.symbolic import hint

SHAPES = st.lists(st.integers(0, 3), max_size=4)


@given(SHAPES, st.randoms(use_true_random=False), st.booleans())
def test_a_layout_is_a_tensors(shape: list[int], random: object, is_expanded: bool) -> None:
    order = sorted(range(len(shape)), key=lambda _: random.random())  # type: ignore[attr-defined]
    x = torch.randn(shape).permute(order)
    x = x.expand(2, *x.shape) if is_expanded else x
    layout = Layout.of(x)
    assert layout == Layout(tuple(x.shape), x.stride())
    zeros = layout.on("cpu", torch.float32)
    assert (zeros.shape, zeros.stride()) == (x.shape, x.stride())
    assert not zeros.any()
    assert layout.is_contiguous == x.is_contiguous()
    other = Layout(tuple(x.shape), torch.empty(x.shape).stride())
    assert layout.is_like(other) == (x.is_contiguous() or 0 in x.shape)
    if layout.order is not None:
        assert x.permute(layout.order).is_contiguous()


def test_symbolic_sizes_are_those_of_the_call_and_get_no_guard() -> None:
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    x = mode.from_tensor(torch.randn(5, 3).t())
    assert isinstance(x.shape[1], torch.SymInt)
    assert Layout.of(x) == Layout((3, 5), (1, 3))
    assert hint(x.shape[1]) == 5
    assert environment.guards == []
    unknown = environment.create_unbacked_symint()
    assert hint(unknown) is None
    with mode:
        assert Layout.of(torch.empty(unknown, 2)) is None
