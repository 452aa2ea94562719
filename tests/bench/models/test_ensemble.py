"""The ensemble's members."""

import torch

from bench.models.ensemble import CLASSES, MEMBERS, Ensemble


@torch.no_grad()
def test_the_output_is_the_mean_of_members_that_differ() -> None:
    ensemble = Ensemble().eval()
    x = torch.randn(2, 3, 32, 32)
    logits = torch.stack([member(x) for member in ensemble.members])
    torch.testing.assert_close(ensemble(x), logits.sum(0) / 8)
    assert logits.unique(dim=0).shape == (MEMBERS, 2, CLASSES)
