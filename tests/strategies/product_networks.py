"""Networks that multiply with the same few matrices again and again, like recurrent ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH = 128


@dataclass(frozen=True)
class Product:
    """A product by one of the network's layers.

    Attributes:
        layer: whose weight it multiplies with.
        reads: the position of the value that it reads, counted from the last.
        then: what is done with the result.
    """

    layer: int
    reads: int
    then: str


class ProductNetwork(nn.Module):
    """Applies its steps in order to rows of numbers; returns the sum of all, and some of them."""

    def __init__(self, steps: tuple[Product, ...], returned: frozenset[int]) -> None:
        super().__init__()
        self.steps, self.returned = steps, returned
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=i != 1) for i in range(3))

    def forward(self, *xs: Tensor) -> list[Tensor]:
        values = list(xs)
        for step in self.steps:
            x = values[-1 - step.reads % len(values)]
            values.append(_then(step.then, self.layers[step.layer](x), x))
        last = torch.cat(values[len(xs) :]).sum(0)  # all are needed, none is returned
        return [last, *(values[len(xs) + i] for i in self.returned)]


def _then(what: str, y: Tensor, x: Tensor) -> Tensor:
    match what:
        case "add":
            return y + x
        case "view":
            return y.t()[:, :1].expand(WIDTH, len(x)).t()
        case "first row":
            return y[:1]
        case "other view":
            return y.view(WIDTH, -1).relu().view(y.shape)
        case "from the beginning of its memory":
            return y.as_strided(y.shape, y.stride(), 0).relu()
    return y


MERGEABLE = ("nothing", "add", "view", "first row", "other view")
THEN = (*MERGEABLE, "from the beginning of its memory")


@st.composite
def product_networks(
    draw: st.DrawFn, n_layers: int = 3, returned: bool = True, then: Sequence[str] = THEN
) -> tuple[ProductNetwork, tuple[Tensor, ...]]:
    """A network in eval mode, and inputs for it.

    Args:
        draw: hypothesis's.
        n_layers: from how many layers the steps take theirs.
        returned: whether results of products may be returned.
        then: what may be done with the results.
    """
    torch.manual_seed(draw(st.integers(0, 99)))
    layers = st.integers(0, n_layers - 1)
    products = st.builds(Product, layers, st.integers(0, 5), st.sampled_from(then))
    steps = tuple(draw(st.lists(products, min_size=2, max_size=12)))
    n_rows = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    xs = tuple(torch.randn(n, WIDTH) for n in n_rows)
    places = st.frozensets(st.integers(0, len(steps) - 1), max_size=2)
    return ProductNetwork(steps, draw(places) if returned else frozenset()).eval(), xs
