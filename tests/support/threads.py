"""Calls one program from several threads at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import Tensor

from tests.support.bits import assert_same_bits

Function = Callable[[Tensor], Tensor]


def assert_threads_do_not_mix(
    ours: Function, eager: Function, inputs: Sequence[Tensor], n_calls: int
) -> None:
    """Each thread calls with an input of its own, again and again, and always gets eager's result.

    Args:
        ours: what the threads call.
        eager: what it must compute, bit by bit.
        inputs: one for each thread.
        n_calls: how often each thread calls.
    """
    together = Barrier(len(inputs))

    @torch.no_grad()
    def call(x: Tensor) -> None:
        together.wait()
        expected = eager(x)
        for _ in range(n_calls):
            assert_same_bits(ours(x), expected)

    with ThreadPoolExecutor(len(inputs)) as pool:
        list(pool.map(call, inputs))
