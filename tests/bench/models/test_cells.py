"""Cell networks have the connections of their tables, not just the right number of parameters."""

import pytest
import torch

from bench.models.amoebanet import amoebanet_a
from bench.models.cells import FactorizedReduction


@pytest.mark.parametrize(
    ("repeats", "channels", "millions"), [(4, 50, 5.1), (6, 190, 86.7)], ids=["mobile", "large"]
)
def test_amoebanet_is_as_large_as_its_paper_says_at_each_size(
    repeats: int, channels: int, millions: float
) -> None:
    with torch.device("meta"):
        model = amoebanet_a(repeats, channels)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def test_a_factorized_reduction_reads_even_and_odd_pixels() -> None:
    layer = FactorizedReduction(1, 2).eval()
    for convolution in (layer.path, layer.shifted_path):
        torch.nn.init.ones_(convolution.weight)
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    expected = torch.stack([image[0, 0, ::2, ::2], image[0, 0, 1::2, 1::2]])
    torch.testing.assert_close(layer(image)[0], expected, rtol=1e-3, atol=0.0)
