"""DLRM's interaction against the dot products, one by one."""

import torch

from bench.models.dlrm import Interaction


def test_every_pair_of_vectors_has_its_dot_product_once() -> None:
    vectors = torch.randn(2, 5, 3)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    expected = torch.stack([(vectors[:, i] * vectors[:, j]).sum(1) for i, j in pairs], dim=1)
    torch.testing.assert_close(Interaction(5)(vectors), expected)
