"""Dynamo's caches of one function are freed, and those of others stay."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import eval_frame, pgo
from torch.fx import GraphModule

from nimble_fx.frontend.models.model_function import unique_function
from nimble_fx.torch_internals.dynamo.caches import BACKENDS, drop_compiled


class Eager:
    """A backend of its own."""

    def __init__(self) -> None:
        self.n_compiles = 0

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.n_compiles += 1
        return gm.forward


def n_kept() -> tuple[int, int]:
    """The backends and functions in Dynamo's tables; a test that reads them sees them renamed."""
    sizes: Any = pgo._CODE_STATE
    return len(eval_frame.cached_backends), len(sizes or ())


def test_all_of_a_function_goes_and_all_of_another_stays() -> None:
    x, other, other_backend = torch.ones(2), unique_function(torch.cos), Eager()
    stays: Callable[[Tensor], Tensor] = torch.compile(other, backend=other_backend)
    stays(x)
    before = n_kept()
    goes, backend = unique_function(torch.sin), Eager()
    torch.compile(goes, backend=backend)(x)
    assert all(now > then for now, then in zip(n_kept(), before, strict=True))
    drop_compiled(goes.__code__, backend)
    assert n_kept() == before
    stays(x)
    assert other_backend.n_compiles == 1


def test_a_table_that_this_pytorch_does_not_have_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    function, backend = unique_function(torch.sin), Eager()
    torch.compile(function, backend=backend)(torch.ones(2))
    monkeypatch.delattr(eval_frame, "cached_backends")
    monkeypatch.setattr(pgo, "_CODE_STATE", None)
    drop_compiled(function.__code__, backend)
    ours = [record for record in caplog.records if record.name.startswith("nimble_fx")]
    assert [record.args for record in ours] == [(BACKENDS,)]
