"""The process of a test computes the same as one that was not forked."""

import ctypes
import os
from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch

from tests.cuda_runtime import forked

pytestmark = pytest.mark.gpu

N_THREADS = 8
N_PROCESSES = 100


def test_threads_may_begin_to_compute_at_once() -> None:
    """As those of autograd do, which begin with `at::init_num_threads`."""
    begin = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    torch.get_num_threads()
    for _ in range(N_PROCESSES):
        child = forked.fork()
        if child == 0:
            _at_once(begin._ZN2at16init_num_threadsEv)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def _at_once(function: "ctypes._FuncPointer") -> None:
    barrier = Barrier(N_THREADS)

    def call() -> None:
        barrier.wait()
        function()

    threads = [Thread(target=call) for _ in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
