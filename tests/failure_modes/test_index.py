"""What goes wrong with several streams in a CUDA graph: each row is a test in tests/failure_modes.

Rows are shown on the virtual device where it can show them, and otherwise on a GPU, or on the
stand-in for the CUDA runtime. What is not handled yet is a strict xfail that says what is missing.
"""

import re
from pathlib import Path

import pytest

ROWS = {
    1: "a block freed on one stream is handed to its next allocation while another still reads it",
    2: "record_stream in a capture keeps blocks to the end",
    3: "many stream objects strand memory",
    4: "a cuBLAS workspace for each stream",
    5: "dropping one graph frees the workspace of another that was captured on the same stream",
    6: "out of memory during a capture",
    7: "a shared pool replayed in another order than captured",
    8: "another allocator than the caching one",
    9: "a side stream not joined, or used before it forked",
    10: "an event from outside waited for inside, or the reverse",
    11: "more than 32 streams: PyTorch's pool wraps round",
    12: "the side branch enqueued first after a fork",
    13: "the user is already capturing",
    14: "called on a stream that is not the default",
    15: "other threads' CUDA calls break a capture",
    16: "garbage collection during a capture",
    17: "libraries that tune, load or allocate inside a capture",
    18: "a capture fails midway",
    19: "two threads replay one graph",
    20: "several devices, or the current device is not the model's",
    21: "pickle or deepcopy of a compiled model",
    22: "sizes and numbers that depend on data",
    23: "a custom operator that synchronizes",
    24: "random numbers",
    25: "warm-up applies a mutation twice",
    26: "an input is mutated",
    27: "parameters move",
    28: "load_state_dict in place",
    29: "folded constants go stale",
    30: "the caller drops an input",
    31: "the next replay overwrites an output that the user kept",
    32: "outputs that alias inputs or each other, repeat, are None or ints",
    33: "CPU tensors in a GPU graph",
    34: "new shapes all the time",
    35: "two forwards before a backward, retain_graph, accumulation",
    36: "streams that the user wrote",
    37: "collectives",
    38: "cond and while_loop",
}

_TESTS = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row:02}: {ROWS[row]}")
def test_each_row_has_a_test_of_its_number(row: int) -> None:
    assert re.search(rf"^def test_{row:02}_", _TESTS, re.MULTILINE)
