"""The stand-in for `torch.cuda` has torch's signatures, and the names that it replaces exist."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.cuda_stand_in import STAND_INS, CUDAGraph, Event, MemPool, Stream, record_stream

METHODS: list[tuple[type, str]] = [
    (Stream, "wait_event"),
    (Stream, "wait_stream"),
    (Event, "record"),
    (Event, "elapsed_time"),
    (CUDAGraph, "capture_begin"),
    (CUDAGraph, "capture_end"),
    (CUDAGraph, "replay"),
    (CUDAGraph, "reset"),
    (MemPool, "snapshot"),
]


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]


@pytest.mark.parametrize("name", STAND_INS)
def test_each_stand_in_takes_what_the_installed_torch_takes_first(name: str) -> None:
    ours, theirs = parameters(STAND_INS[name]), parameters(getattr(torch.cuda, name))
    assert ours == theirs[: len(ours)]
    assert all(default is not inspect.Parameter.empty for *_, default in theirs[len(ours) :])


@pytest.mark.parametrize(("stand_in", "method"), METHODS, ids=lambda x: getattr(x, "__name__", x))
def test_so_does_each_of_its_methods(stand_in: type, method: str) -> None:
    real = getattr(torch.cuda, stand_in.__name__)
    ours, theirs = parameters(getattr(stand_in, method)), parameters(getattr(real, method))
    assert ours == theirs[: len(ours)]


def test_what_is_written_in_c_is_there_and_takes_as_many_arguments() -> None:
    """`torch._C._cuda_clearCublasWorkspaces` is only in builds for CUDA, without a signature."""
    assert str(torch.Tensor.record_stream.__doc__).strip().startswith("record_stream(stream)")
    assert [name for name, *_ in parameters(record_stream)] == ["tensor", "stream"]
    assert isinstance(inspect.getattr_static(torch.cuda.MemPool, "id"), property)
