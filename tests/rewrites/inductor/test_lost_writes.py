"""A write that nothing reads is refused: values that were to be read are missing somewhere."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.lost_writes import check_no_write_is_lost
from nimble_fx.torch_internals.names import lookup
from tests.support.schedules import aten_graph


def read_too_early(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    z = y.exp()
    y.add_(x)
    return z


def written_without_need(x: Tensor) -> Tensor:
    y = x * 2
    y.t().mul_(3)
    return x + 1


def read_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    view = y.t()
    y.mul_(3)
    return view.exp()


def returned(x: Tensor) -> Tensor:
    y = x * 2
    y[0].mul_(3)
    return y


def written_to_the_caller(x: Tensor) -> Tensor:
    x.t().mul_(3)
    return x.new_zeros(2)


@pytest.mark.parametrize("function", [read_too_early, written_without_need])
def test_a_write_that_nothing_reads_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    graph = aten_graph(function, torch.randn(4, 4), functional=False).graph
    with pytest.raises(UnsupportedError, match=r"nothing reads what (add|mul)_ writes to"):
        check_no_write_is_lost(graph)


@pytest.mark.parametrize("function", [read_through_a_view, returned, written_to_the_caller])
def test_what_is_read_or_belongs_to_the_caller_is_no_lost_write(
    function: Callable[[Tensor], Tensor],
) -> None:
    check_no_write_is_lost(aten_graph(function, torch.randn(4, 4), functional=False).graph)


def test_gradients_of_many_updates_are_right() -> None:
    """The Inductor of PyTorch 2.13 sums them on two threads before they are all computed."""
    places = torch.randint(4, (4, 3))

    def function(x: Tensor, weight: Tensor) -> list[Tensor]:
        y = x @ weight
        return [
            y.gather(1, places),
            torch.zeros_like(y).scatter_add(1, places, y[:, :3]),
            y.scatter(1, places, 2.0),
            y.cumprod(1),
            y.logcumsumexp(1),
            y.cummax(1)[0],
            y.kthvalue(2)[0],
            y.median(1)[0],
            y.index_add(0, places[0], y[:3]),
            y.scatter_reduce(1, places, y[:, :3], "amax"),
        ]

    x, weight = torch.randn(4, 5), torch.randn(5, 8, requires_grad=True)

    def gradient(function: Callable[..., list[Tensor]]) -> Tensor:
        terms = [
            (y * torch.linspace(1, 2, y.numel()).view(y.shape)).sum() for y in function(x, weight)
        ]
        (found,) = torch.autograd.grad(torch.stack(terms).sum(), weight)
        return found

    options: dict[str, Any] = {"kernels": "inductor", "on_fallback": "silent"}
    compiled = torch.compile(function, backend="nimble", options=options)
    with lookup("torch._inductor.config").patch({"cpp.threads": 2}):
        found = gradient(compiled)
    torch.testing.assert_close(found, gradient(function))
