"""A PyTorch without a library's private operators is taken for one without the library."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from nimble_fx.torch_internals import names
from nimble_fx.torch_internals.kernels import cudnn, onednn
from nimble_fx.torch_internals.names import Missing, lookup


def executed(module: Any) -> dict[str, Any]:
    """A module's global names after it was executed once more."""
    return runpy.run_path(str(Path(module.__file__)))


@pytest.mark.parametrize("missing", ["cudnn_convolution_relu", "cudnn_convolution_add_relu"])
def test_cudnn_is_off(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "lookup", lambda x: Missing(x) if missing in x else lookup(x))
    assert not executed(cudnn)["is_enabled"]()


@pytest.mark.parametrize("missing", ["_convolution_pointwise", "_linear_pointwise", "reorder"])
def test_onednn_is_off(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "lookup", lambda x: Missing(x) if missing in x else lookup(x))
    assert not executed(onednn)["is_available"]()


def test_they_are_on_if_pytorch_has_them() -> None:
    assert executed(onednn)["is_available"]() == onednn.is_available()
    assert executed(cudnn)["is_enabled"]() == cudnn.is_enabled()
