"""Devices that count, stand-ins for `torch.cuda`, and no fallback unless a test expects it."""

import warnings
from collections.abc import Iterator

import pytest

from nimble_fx.errors import NimbleWarning
from tests import cuda_stand_in
from tests.replaying import ReplayingDevice


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ReplayingDevice:
    """Every program that the backend compiles runs on this device."""
    replaying = ReplayingDevice()
    monkeypatch.setattr("nimble_fx.backend.device_for", lambda _: replaying)
    return replaying


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Gpu:
    """Every program runs on a CUDA device, on a stand-in for `torch.cuda`."""
    return cuda_stand_in.install(monkeypatch)


@pytest.fixture(autouse=True)
def _no_fallback_unless_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NimbleWarning)
        yield
