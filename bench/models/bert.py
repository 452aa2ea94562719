"""BERT-base's encoder with its pooler, with random weights: `bert_base`.

Source: Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for
Language Understanding", NAACL 2019: section 3 (12 layers, 768 wide, 12 heads), figure 2 (the sum
of three embeddings), appendix A.2 (GELU). A layer is that of Vaswani et al., "Attention Is All You
Need", NeurIPS 2017, section 3. The pooler, a layer on the first position, is the one that the
authors released; the 109,482,240 parameters are those of their uncased vocabulary of 30,522.

The queries, keys and values have a projection each. There is no dropout, and all tokens are of the
first segment.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from bench.models.model import Form, Model, mean_square

VOCABULARY, POSITIONS, SEGMENTS = 30_522, 512, 2
LAYERS, WIDTH, HEADS, INNER = 12, 768, 12, 3072
SEQUENCE = 128


def _layer_norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-12)


class Attention(nn.Module):
    """Self-attention of several heads: (batch, sequence, width) -> the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value)
        result: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Attention and a feed-forward network, each with its residual, then normalized.

    (batch, sequence, width) -> the same shape.
    """

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = _layer_norm(width)
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.norm = _layer_norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        result: Tensor = self.norm(x + self.contract(gelu(self.expand(x))))
        return result


class Embeddings(nn.Module):
    """Tokens (batch, sequence) int64 -> the sum of three embeddings (batch, sequence, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.segments = nn.Embedding(SEGMENTS, WIDTH)
        self.norm = _layer_norm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        segments = self.segments(torch.zeros_like(tokens))
        result: Tensor = self.norm(self.tokens(tokens) + self.positions(positions) + segments)
        return result


def _initialize(module: nn.Module) -> None:
    """As the authors' code does, but for the cut at two standard deviations."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class Bert(nn.Module):
    """Tokens (batch, sequence) int64 -> the pooled first position (batch, WIDTH).

    The pooled output, not the sequence: only from it do all parameters have a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.Sequential(*(Layer(WIDTH, HEADS, INNER) for _ in range(LAYERS)))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.layers(self.embeddings(tokens))
        return torch.tanh(self.pooler(hidden[:, 0]))


def _form(batches: tuple[int, ...]) -> Form:
    return Form(
        title=f"sequence {SEQUENCE}",
        build=Bert,
        inputs=lambda batch: (torch.randint(VOCABULARY, (batch, SEQUENCE)),),
        output_shape=lambda batch: (batch, WIDTH),
        batches=batches,
        loss=mean_square,
    )


MODELS: tuple[Model, ...] = (
    Model(
        name="bert_base",
        title="BERT-base",
        source="Devlin et al., NAACL 2019",
        n_parameters=109_482_240,
        inference=_form((1,)),
        training=(_form((8,)),),
    ),
)
