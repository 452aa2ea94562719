"""Python's logging of a compile, as `TORCH_LOGS="+nimble_fx"` prints it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx

ON_VIRTUAL: dict[str, Any] = {"device": "virtual", "policy": "nimble", "on_fallback": "silent"}


def two_branches(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.sigmoid(x)


def looks_around(x: Tensor) -> Tensor:
    return x.as_strided((2,), (1,), 1).exp()


def test_each_step_of_a_compile_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="nimble_fx"):
        compiled = nimble_fx.compile(two_branches, torch.randn(2, 4), **ON_VIRTUAL)
    (program,) = compiled.programs
    for step in program.graph.provenance[1:]:
        assert f"two_branches: {step}: 2 dependencies" in caplog.text
    assert "assign-streams" in caplog.text
    assert "insert-waits: 2 dependencies, 2 streams, 1 waits" in caplog.text
    assert program.source in caplog.text
    assert "two_branches: captured for sizes ()" in caplog.text


def test_what_was_decided_can_be_logged_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="nimble_fx"):
        compiled = nimble_fx.compile(two_branches, torch.randn(2, 4), **ON_VIRTUAL)
    (program,) = compiled.programs
    assert program.summary().splitlines()[1] in caplog.text
    assert "insert-waits:" not in caplog.text
    assert "def call(" not in caplog.text


def test_which_kernels_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    with caplog.at_level(logging.INFO, logger="nimble_fx"):
        (program,) = nimble_fx.compile(model, torch.randn(1, 3, 5, 5)).programs
    assert f"Sequential.forward: kernels: {program.kernel_choice}" in caplog.text


def test_a_fallback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="nimble_fx"):
        torch.compile(looks_around, backend="nimble", options=ON_VIRTUAL)(torch.randn(4))
    assert "looks_around runs unfrozen: as_strided" in caplog.text


def test_torchs_structured_log_has_the_schedule_and_the_module() -> None:
    with structured_log() as records:
        compiled = nimble_fx.compile(two_branches, torch.randn(2, 4), **ON_VIRTUAL)
    (program,) = compiled.programs
    artifacts = artifacts_of(records)
    assert artifacts["nimble_module"] == program.source
    assert artifacts["nimble_schedule"] == str(program.graph)
    assert artifacts["nimble_summary"].splitlines()[0] == "two_branches"
    assert "nimble_fallback" not in artifacts


def test_torchs_structured_log_has_fallbacks() -> None:
    with structured_log() as records:
        torch.compile(looks_around, backend="nimble", options=ON_VIRTUAL)(torch.randn(4))
    (fallback,) = nimble_fx.fallbacks()
    assert artifacts_of(records)["nimble_fallback"] == str(fallback)


class Kept(logging.Handler):
    """Keeps the records that it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def structured_log() -> Iterator[list[logging.LogRecord]]:
    """The records of PyTorch's structured log, which goes to files under TORCH_TRACE."""
    log, handler = logging.getLogger("torch.__trace"), Kept()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler.records
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def artifacts_of(records: list[logging.LogRecord]) -> dict[str, str]:
    """The texts in PyTorch's structured log by the names of the artifacts."""
    found = [(getattr(each, "metadata", {}), getattr(each, "payload", "")) for each in records]
    return {meta["artifact"]["name"]: text for meta, text in found if "artifact" in meta}


def test_torchs_logging_sets_the_level_of_the_package() -> None:
    torch._logging.set_logs(modules={"nimble_fx": logging.DEBUG})  # type: ignore[attr-defined]
    try:
        assert logging.getLogger("nimble_fx.compiler").isEnabledFor(logging.DEBUG)
    finally:
        torch._logging.set_logs()  # type: ignore[attr-defined]
