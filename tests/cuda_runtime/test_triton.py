"""Triton's kernels compute values, by launch and by replay, if Triton is installed."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

if not os.environ.get("STANDIN_TRITON"):
    pytest.skip("needs Triton, and STANDIN_TRITON=1", allow_module_level=True)

from tests.cuda_runtime.triton_launches import launches

pytestmark = pytest.mark.gpu

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pointwise": lambda x, y: (x + y).relu() * x.sigmoid(),
    "sums": lambda x, y: ((x * y).sum(-1), x.mean()),
    "softmax": lambda x, y: (x - y).softmax(-1),
    "layer norm": lambda x, y: F.layer_norm(x + y, (100,)),
    "largest": lambda x, y: (x.max(-1), y.argmin(0)),
    "sums of all before": lambda x, y: (x + y).cumsum(-1),
    "libdevice": lambda x, y: (x.tanh(), y.erf(), x.abs().log1p(), y.atan2(x)),
}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_inductors_kernels_compute_what_eager_does(name: str, mode: str | None) -> None:
    program, inputs = PROGRAMS[name], (torch.randn(64, 100), torch.randn(64, 100))
    compiled = torch.compile(program, mode=mode)
    for _ in range(3):
        before = launches.total()
        ours = compiled(*[x.cuda() for x in inputs])
        expected = torch.utils._pytree.tree_leaves(program(*inputs))
        found = [x.cpu() for x in torch.utils._pytree.tree_leaves(ours)]
        torch.testing.assert_close(found, expected)
        assert launches.total() > before
