"""Folded weights that are twice the weights."""

from torch import Tensor

from nimble_fx.runtime.folding.folded_weights import FoldedWeights


class Doubling:
    """Twice each weight; counts how often it was computed."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, *weights: Tensor) -> list[Tensor]:
        self.n += 1
        return [2 * weight for weight in weights]


def doubled(n: int = 1) -> FoldedWeights:
    """Twice each of so many weights."""
    return FoldedWeights(Doubling(), [None] * n)
