"""Runs a pytest item in a process of its own, forked from one that has imported everything."""

import os
import pickle
import select
import signal
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

import pytest
import torch
from _pytest.runner import runtestprotocol


def reports(
    item: pytest.Item, limit: float, prepare: Callable[[int], object]
) -> list[pytest.TestReport]:
    """The reports of an item; one of a failure if its process dies or takes too long.

    Args:
        item: not run in this process.
        limit: in seconds.
        prepare: called in the child, with a file for a last message.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as last_words:
        child = fork()
        if child == 0:
            os.close(reading)
            prepare(last_words.fileno())
            _run(item, writing)
        os.close(writing)
        data = _read(reading, limit)
        if data is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if data is not None and status == 0:
            hook = item.config.hook
            return [
                hook.pytest_report_from_serializable(config=item.config, data=each)
                for each in pickle.loads(data)
            ]
        ended = f"no end after {limit} s" if data is None else f"its process died: {_cause(status)}"
        return [_failure(item, ended, last_words)]


def fork() -> int:
    """As `os.fork`, with a new pool of threads for operators in the child.

    PyTorch makes one where a thread next asks for it, but has none for another that asks meanwhile,
    which ends the process. The threads of autograd do so, one for each device.
    """
    child = os.fork()
    if child == 0:
        torch.set_num_threads(torch.get_num_threads())
    return child


def _run(item: pytest.Item, writing: int) -> None:
    """In the child: runs the item, sends its reports, and ends the process."""
    hook, config = item.config.hook, item.config
    made = runtestprotocol(item, log=False, nextitem=None)
    data = [hook.pytest_report_to_serializable(config=config, report=each) for each in made]
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(data, pipe)
    os._exit(0)


def _read(reading: int, limit: float) -> bytes | None:
    """All that comes through a pipe until it is closed; None if that takes too long."""
    chunks, end = list[bytes](), time.monotonic() + limit
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(end - time.monotonic(), 0))[0]:
            chunk = pipe.read(1 << 16)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
    return None


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit status {code}" if code >= 0 else signal.Signals(-code).name


def _failure(item: pytest.Item, ended: str, last_words: IO[Any]) -> pytest.TestReport:
    last_words.seek(0)
    text = f"{ended}\n{last_words.read().decode(errors='replace')}"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
