"""Settings for all tests: no deadlines, no state left between two, GPU tests only on a GPU."""

import gc
import importlib
import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from hypothesis import settings

from nimble_fx.backend import nimble, reset
from tests.support.models import LARGE
from tests.support.replaying import ReplayingDevice

# The suite tries the same examples each time; `make fuzz` is there to find new ones.
settings.register_profile("nimble", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("nimble")
torch.set_num_threads(1)  # tensors are tiny; threads that spin for work only slow each other down
# Dynamo times the guards of each compile for a log, which takes 30 ms.
vars(importlib.import_module("torch._dynamo.guards"))["profile_guard_manager"] = lambda *_: 0.0


if "nimble" not in torch._dynamo.list_backends(()):  # run from a checkout, not installed
    torch._dynamo.register_backend(nimble, name="nimble")

NEEDS = {
    "scenarios/test_generation.py": "transformers",
    "scenarios/test_operator_samples.py": "expecttest",
    "scenarios/test_triton_kernels.py": "triton",
    "bench/test_commands.py": "matplotlib",
    "bench/test_optimality.py": "ortools",
    "bench/test_report.py": "matplotlib",
    "bench/test_schedule_picture.py": "matplotlib",
}
"""Tests that need a package which a machine with PyTorch, pytest and hypothesis alone lacks."""

collect_ignore = [file for file, package in NEEDS.items() if not find_spec(package)]


@pytest.fixture(autouse=True, scope="module")
def _what_is_imported_is_no_garbage() -> None:
    """Leaves what is imported out of each search for garbage: it takes most of the time of one."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Lets pytest not listen to PyTorch's trace of each compile, which costs if anyone does."""
    trace = logging.getLogger("torch.__trace")
    for handler in [h for h in trace.handlers if type(h).__module__ == "_pytest.logging"]:
        trace.removeHandler(handler)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    reset()  # which PyTorch has not called if a test has deleted all that it compiled
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ReplayingDevice:
    """Every program that the backend compiles runs on this device."""
    replaying = ReplayingDevice()
    monkeypatch.setattr("nimble_fx.this_machine.device_for", lambda _: replaying)
    return replaying


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if isinstance(item, pytest.Function) and LARGE.intersection(_drawn_from(item)):
            item.add_marker(pytest.mark.slow)


def _drawn_from(item: pytest.Function) -> Iterator[str]:
    """The names among a test's parameters."""
    if hasattr(item, "callspec"):
        yield from (each for each in item.callspec.params.values() if isinstance(each, str))
