"""Inductor compiles a graph, whatever was imported before."""

import subprocess
import sys

import pytest

FIRST_COMPILE = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from nimble_fx.torch_internals.kernels.inductor import compile_with_inductor

pool = make_fx(lambda x: (torch.nn.functional.max_pool2d(x, 2),), tracing_mode="fake")
module = compile_with_inductor(pool(torch.randn(1, 1, 4, 4)))
assert "max_pool2d" in str(module.origins), module
"""


@pytest.mark.slow
def test_the_first_graph_of_a_process_may_have_operators_that_inductor_decomposes() -> None:
    subprocess.run([sys.executable, "-c", FIRST_COMPILE], check=True)
