"""Mixtures of experts, some of them shared by all tokens: `moe_shared_experts`.

Source: Dai et al., "DeepSeekMoE: Towards Ultimate Expert Specialization in Mixture-of-Experts
Language Models", ACL 2024: figure 2 (c) and section 3.2 (the layer). An expert is the SwiGLU of
Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202, 2020. The widths are our own, and
the attention between two such layers is left out: this is about the experts.

A routed expert runs on all tokens, and counts with weight zero for those that did not choose it. A
CUDA graph has static shapes, while how many tokens choose an expert is known only when it runs.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from bench.models.model import Form, Model, mean_square

BLOCKS, WIDTH, INNER = 4, 1024, 704
SHARED, ROUTED, CHOSEN = 2, 8, 2
TOKENS = 32


class Expert(nn.Module):
    """SwiGLU: (..., width) -> (..., width)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return result


class Router(nn.Module):
    """A token's weight for each expert: (..., width) -> (..., experts), zero but for `chosen`.

    As in the paper, the weights of those chosen are not scaled to have the sum 1.
    """

    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.centroids = nn.Linear(width, experts, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        affinities = self.centroids(x).softmax(-1)
        best, experts = affinities.topk(self.chosen)
        return torch.zeros_like(affinities).scatter(-1, experts, best)


class Mixture(nn.Module):
    """x + its shared experts + its routed experts, weighted: (..., width) -> (..., width).

    The experts' input is normalized.
    """

    def __init__(self, width: int, inner: int, shared: int, routed: int, chosen: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.router = Router(width, routed, chosen)
        self.shared = nn.ModuleList(Expert(width, inner) for _ in range(shared))
        self.routed = nn.ModuleList(Expert(width, inner) for _ in range(routed))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x)
        weights = self.router(tokens).split(1, dim=-1)
        outputs = [expert(tokens) for expert in self.shared]
        outputs += [
            weight * expert(tokens) for weight, expert in zip(weights, self.routed, strict=True)
        ]
        return torch.stack([x, *outputs]).sum(0)


def _initialize(module: nn.Module) -> None:
    """Experts that add about as much as the residual has: with PyTorch's default, a sixth of it."""
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")


def moe_shared_experts() -> nn.Sequential:
    """Hidden states (batch, tokens, WIDTH) -> the same shape."""
    blocks = [Mixture(WIDTH, INNER, SHARED, ROUTED, CHOSEN) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks).apply(_initialize)


def _form(batches: tuple[int, ...]) -> Form:
    return Form(
        title=f"{TOKENS} tokens",
        build=moe_shared_experts,
        inputs=lambda batch: (torch.randn(batch, TOKENS, WIDTH),),
        output_shape=lambda batch: (batch, TOKENS, WIDTH),
        batches=batches,
        loss=mean_square,
    )


MODELS: tuple[Model, ...] = (
    Model(
        name="moe_shared_experts",
        title=f"{BLOCKS} mixtures of {SHARED} shared and {ROUTED} routed experts",
        source="Dai et al., ACL 2024",
        n_parameters=BLOCKS * ((SHARED + ROUTED) * 3 * WIDTH * INNER + ROUTED * WIDTH + WIDTH),
        inference=_form((1,)),
        training=(_form((8,)),),
    ),
)
