"""Memory is poisoned when allocated and freed after its uses; uses after a free name the task."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable

import pytest
import torch

from tests.cuda_runtime import library
from tests.cuda_runtime.cuda_libraries import runtime

pytestmark = pytest.mark.gpu


def test_memory_that_nobody_wrote_is_not_a_number() -> None:
    assert torch.empty(1000, device="cuda").isnan().all()


def test_memory_that_is_handed_out_again_is_not_a_number() -> None:
    address = torch.ones(1000, device="cuda").data_ptr()
    again = torch.empty(1000, device="cuda")
    assert again.data_ptr() == address
    assert again.isnan().all()


def test_in_a_graph_it_is_not_a_number_in_each_replay() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = torch.ones(1000, device="cuda")
        address = first.data_ptr()
        del first
        again = torch.empty(1000, device="cuda")
        copied = again + 1
    assert again.data_ptr() == address
    for _ in range(2):
        copied.fill_(0)
        graph.replay()
        assert copied.isnan().all()


def test_what_was_enqueued_before_a_block_was_dropped_still_reads_it() -> None:
    library.set_mode("lazy")
    x = torch.ones(1000, device="cuda")
    y = x + 1
    address = x.data_ptr()
    del x
    again = torch.empty(1000, device="cuda")
    assert again.data_ptr() == address
    assert y.tolist() == [2.0] * 1000


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_block_that_another_stream_reads_must_be_recorded(is_recorded: bool) -> None:
    library.set_mode("lazy")
    side, x = torch.cuda.Stream(), torch.ones(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    if is_recorded:
        x.record_stream(side)
    del x
    torch.empty(1000, device="cuda")
    torch.cuda.current_stream().synchronize()
    side.synchronize()
    assert y.isnan().any().item() != is_recorded


def test_memory_is_freed_after_the_work_that_reads_it_and_the_host_does_not_wait() -> None:
    library.set_mode("lazy")
    x = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    y = x + 1
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    before = library.counters()["frees"]
    del x
    torch.cuda.empty_cache()
    assert library.counters()["frees"] == before + 1
    with pytest.raises(RuntimeError, match="must be completed"):
        event.elapsed_time(event)
    assert y.sum().item() == 2 * y.numel()


def test_a_copy_from_pageable_memory_takes_it_as_it_is_and_one_from_pinned_memory_later() -> None:
    library.set_mode("lazy")
    pageable, pinned = torch.ones(1000), torch.ones(1000).pin_memory()
    copies = [x.to("cuda", non_blocking=True) for x in (pageable, pinned)]
    for x in (pageable, pinned):
        x.fill_(2)
    assert [x[0].item() for x in copies] == [1, 2]


def test_a_copy_to_pageable_memory_is_waited_for_and_one_to_pinned_memory_not() -> None:
    library.set_mode("lazy")
    x, pinned = torch.ones(1000, device="cuda"), torch.zeros(1000).pin_memory()
    assert torch.zeros(1000).copy_(x, non_blocking=True).tolist() == [1] * 1000
    pinned.copy_(x * 1, non_blocking=True)
    assert pinned.tolist() == [0] * 1000
    torch.cuda.synchronize()
    assert pinned.tolist() == [1] * 1000


def test_more_memory_than_there_is_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(9 << 30, dtype=torch.uint8, device="cuda")


def test_the_memory_of_a_graph_goes_back() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = torch.empty(32 << 20, device="cuda")
    assert torch.cuda.memory_reserved() >= x.nbytes
    nbytes = x.nbytes
    del graph, x
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < nbytes


def last_words(run: Callable[[], object]) -> str:
    """Runs a function in a process of its own, which dies; returns what the stand-in says."""
    reading, writing = os.pipe()
    torch.cuda.init()
    child = os.fork()
    if child == 0:
        library.report_faults(writing)
        torch.cuda._is_in_bad_fork = lambda: False  # it forks like any memory
        run()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    return said


def use_after_free() -> None:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(8 << 20, device="cuda")
    with torch.cuda.graph(graph):
        x.sum()
    graph.replay()
    torch.cuda.synchronize()
    del x
    torch.cuda.empty_cache()
    graph.replay()
    torch.cuda.synchronize()


def use_after_the_pool_is_gone() -> None:
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = torch.ones(8 << 20, device="cuda")
    with torch.cuda.graph(other):
        x.sum()
    del graph, x
    gc.collect()
    torch.cuda.empty_cache()
    other.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("run", [use_after_free, use_after_the_pool_is_gone])
def test_a_replay_that_reads_freed_memory_is_an_error_that_names_the_operator(
    run: Callable[[], object],
) -> None:
    said = last_words(run)
    assert said.startswith("illegal memory access: replay of")
    assert "aten::sum" in said


def test_a_copy_beyond_the_end_of_an_allocation_is_an_error() -> None:
    x = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    (segment,) = torch.cuda.memory_snapshot()
    size = ctypes.c_size_t(segment["total_size"] + 1)
    address = ctypes.c_void_p(x.data_ptr())
    assert runtime.cudaMemset(address, 0, size) == 1
