"""Random numbers of a kernel: drawn on the CPU, from what the CUDA kernel was given.

A CUDA kernel is given a seed and an offset (Philox), or in a capture pointers to them, so that each
replay draws anew. They are read when the numbers are drawn. The numbers are not a GPU's, but the
same seed gives the same ones in eager mode and in a graph.
"""

import ctypes
from collections.abc import Callable

import torch

_MIX = 0x9E3779B97F4A7C15
_MASK = 2**63 - 1


def seeded(function: Callable[[], object], state: bytes) -> Callable[[], object]:
    """The function, with the CPU's generator seeded by a Philox state while it runs."""

    def draw() -> None:
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(_seed(state))
        try:
            function()
        finally:
            generator.set_state(before)

    return draw


def _seed(state: bytes) -> int:
    """One number for a seed and an offset, through the pointers where it was captured."""
    seed, offset, inside = (int.from_bytes(state[i : i + 8], "little") for i in (0, 8, 16))
    if state[24]:
        seed, offset = (ctypes.c_int64.from_address(address).value for address in (seed, offset))
    return ((seed * _MIX + offset + inside) ^ (seed >> 7)) & _MASK
