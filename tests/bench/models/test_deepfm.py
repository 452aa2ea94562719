"""DeepFM's second-order term against its definition."""

from itertools import combinations

import torch

from bench.models.deepfm import second_order


def test_the_second_order_term_is_the_sum_over_all_pairs_of_fields() -> None:
    fields = torch.randn(4, 7, 10)
    pairs = combinations(fields.unbind(1), 2)
    expected = torch.stack([(one * other).sum(1) for one, other in pairs]).sum(0)
    torch.testing.assert_close(second_order(fields), expected[:, None], atol=1e-5, rtol=1e-5)
