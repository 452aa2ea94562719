"""Finds where lines are shown, and what warnings say of programs that run slower."""

from collections.abc import Callable
from typing import Any

import torch

import nimble_fx
from nimble_fx.fallback import Fallback

VIRTUAL: dict[str, Any] = {"device": "virtual"}


def on_virtual(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(model, backend="nimble", options=VIRTUAL | options)
    return compiled


def the_fallback(reason: str, node: str | None = None, code: str | None = None) -> Fallback:
    """The one fallback, which must have this in its reason, and this operator and line."""
    (fallback,) = nimble_fx.fallbacks()
    assert reason in fallback.reason
    assert (node is None) == (fallback.node is None)
    assert (node or "") in (fallback.node or "")
    source = fallback.source
    assert (code is None) == (source is None)
    assert source is None or (code or "") in source.code
    return fallback
