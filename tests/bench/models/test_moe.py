"""A mixture of experts against one that only evaluates the selected experts of each token."""

import torch
from torch import Tensor

from bench.models.moe import Mixture


def _routed(mixture: Mixture, token: Tensor) -> Tensor:
    """The weighted outputs of the two experts that a normalized token (width,) chose."""
    affinities = (mixture.router.centroids.weight @ token).softmax(0)
    first, second = sorted(range(5), key=lambda i: -float(affinities[i]))[:2]
    return affinities[first] * mixture.routed[first](token) + affinities[second] * (
        mixture.routed[second](token)
    )


@torch.no_grad()
def test_a_token_gets_the_shared_experts_and_those_it_chose() -> None:
    mixture = Mixture(width=8, inner=6, shared=2, routed=5, chosen=2)
    x = torch.randn(1, 9, 8)
    tokens = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    shared = mixture.shared[0](tokens) + mixture.shared[1](tokens)
    routed = torch.stack([_routed(mixture, token) for token in tokens[0]])
    torch.testing.assert_close(mixture(x), x + shared + routed)


@torch.no_grad()
def test_a_token_chooses_two_experts() -> None:
    weights = Mixture(width=8, inner=6, shared=2, routed=5, chosen=2).router(torch.randn(3, 9, 8))
    assert ((weights > 0).sum(-1) == 2).all()
