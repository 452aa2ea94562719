"""The pytest plugin: `pytest -p tests.cuda_runtime.plugin` runs tests on the stand-in.

Kernels compute, the allocator's blocks are poisoned, an error in a host function fails the test,
and each test has a process of its own, so that one that breaks the device, or hangs, is one
failure. It is forked before CUDA is initialized, so that imports are paid for once.
"""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch

from tests.cuda_runtime import forked, library, overrides
from tests.cuda_runtime.host_functions import settle

LIMIT = float(os.environ.get("STANDIN_LIMIT", "300"))
"""Seconds that a test may take."""

N_DEVICES = int(os.environ.get("STANDIN_DEVICES", "1"))

# Who asks CUDA for the number of devices cannot use it in a fork. Imports ask: Inductor's, in some
# versions, when Triton's launches or a conftest.py imports it.
_count_devices = torch._C._cuda_getDeviceCount
torch._C._cuda_getDeviceCount = lambda: N_DEVICES
overrides.install()
if os.environ.get("STANDIN_TRITON"):
    from tests.cuda_runtime import triton_launches

    triton_launches.install()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    """Compiles a model on the CPU, to import what compiling imports once for all tests."""
    with patch("torch._C._cuda_getDeviceCount", lambda: 0), torch.no_grad():
        torch.compile(torch.nn.Linear(2, 2), backend="nimble")(torch.ones(2, 2))
    torch.compiler.reset()
    for known in vars(torch.utils._triton).values():  # it has learnt that there is no device
        if hasattr(known, "cache_clear"):
            known.cache_clear()


def pytest_report_header() -> str:
    mode, seed = os.environ.get("STANDIN_MODE", "eager"), os.environ.get("STANDIN_SEED", "1")
    return f"CUDA stand-in on the CPU, no GPU: PyTorch {torch.__version__}, {mode}, seed {seed}"


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times mean nothing here: it is enough that they are taken."""
    monkeypatch.setattr("nimble_fx.runtime.capture.autotuning.N_ROUNDS", 1)
    monkeypatch.setattr("nimble_fx.runtime.capture.autotuning.N_REPLAYS", 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield
    if found := settle():
        pytest.fail("in a host function of the stand-in:\n" + "\n".join(found), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool:
    hook = item.config.hook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in forked.reports(item, LIMIT, _prepare):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _prepare(last_words: int) -> None:
    """In the process of a test."""
    torch._C._cuda_getDeviceCount = _count_devices
    library.report_faults(last_words)
    torch.cuda._lazy_call(library.poison_blocks)
