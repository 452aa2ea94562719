"""Where the rows are shown: on the virtual device, and on a stand-in for `torch.cuda`."""

from collections.abc import Callable
from typing import Any

import torch

from nimble_fx.devices.cuda import Cuda

VIRTUAL: dict[str, Any] = {"device": "virtual"}


def on_virtual(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(model, backend="nimble", options=VIRTUAL | options)
    return compiled


def cuda() -> Cuda:
    return Cuda(torch.device("cuda", 0))
