"""The functions of the stand-in's libraries that are not CUDA's, by ctypes."""

import ctypes
from collections.abc import Callable
from typing import Any

from tests.cuda_runtime.cuda_libraries import runtime

_NAMES = (
    *("issued", "captured", "launches", "replayed", "graphs", "graph_launches"),
    *("allocations", "frees", "events", "synchronizations"),
)

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_long)

runtime.standin_enqueue.argtypes = [
    *(ctypes.c_void_p, ctypes.c_char_p, HostFunction, ctypes.c_long),
]
runtime.standin_last_philox.restype = ctypes.c_long
runtime.standin_take_dropped.restype = ctypes.c_long
runtime.standin_poison.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in _NAMES]


def counters() -> dict[str, int]:
    """How often the runtime was asked for what, since the process began."""
    found = _Counters()
    runtime.standin_get_counters(ctypes.byref(found))
    return {name: getattr(found, name) for name in _NAMES}


def set_mode(mode: str, seed: int = 1) -> None:
    """Changes the order of work to eager, lazy or random, once all that is pending has run."""
    runtime.standin_set_mode(mode.encode(), seed)


def last_philox() -> tuple[int, bytes]:
    """How many of this thread's kernels drew random numbers, and what state the last was given."""
    raw = ctypes.create_string_buffer(32)
    return runtime.standin_last_philox(raw), raw.raw


def report_faults(file: int) -> None:
    """Makes an access to memory after cudaFree say which task it is of, also to a file."""
    runtime.standin_report_faults(file)


def poison_blocks() -> None:
    """Poisons each block that PyTorch's caching allocator hands out, from now on."""
    ctypes.CDLL("libstandin_allocator.so").standin_poison_blocks()


def enqueue(stream: int, label: str, function: Callable[[int], Any], number: int) -> int:
    """Enqueues a host function with a number, or captures it; returns CUDA's error."""
    error: int = runtime.standin_enqueue(stream, label.encode(), function, number)
    return error


def take_dropped() -> list[int]:
    """The numbers of host functions that nothing will run again, each once."""
    found = (ctypes.c_long * 256)()
    n = runtime.standin_take_dropped(found, len(found))
    return found[:n]
