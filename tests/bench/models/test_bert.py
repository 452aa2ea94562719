"""BERT's layer against PyTorch's."""

import torch
from torch import nn

from bench.models.bert import Layer


@torch.no_grad()
def test_a_layer_computes_what_torchs_encoder_layer_does() -> None:
    layer = Layer(width=8, heads=2, inner=16)
    reference = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    )
    attention = layer.attention
    projections = (attention.query, attention.key, attention.value)
    reference.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    reference.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    reference.self_attn.out_proj.load_state_dict(attention.output.state_dict())
    reference.norm1.load_state_dict(layer.attention_norm.state_dict())
    reference.linear1.load_state_dict(layer.expand.state_dict())
    reference.linear2.load_state_dict(layer.contract.state_dict())
    reference.norm2.load_state_dict(layer.norm.state_dict())
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(layer(x), reference(x))
