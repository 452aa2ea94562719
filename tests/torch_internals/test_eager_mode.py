"""No mode and no setting of the caller reaches operators in plain eager mode, and all come back."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.torch_internals.eager_mode import plain_eager_mode


class Intercepts(TorchFunctionMode):
    """Returns its own result for each function."""

    def __torch_function__(self, *_args: Any, **_kwargs: Any) -> Any:
        return "intercepted"


class Dispatches(TorchDispatchMode):
    """Returns its own result for each operator."""

    def __torch_dispatch__(self, *_args: Any, **_kwargs: Any) -> Any:
        return torch.zeros(())


class Subclass(Tensor):
    """A subclass whose results have its type."""


def test_the_callers_modes_and_settings_do_not_reach_operators() -> None:
    x, weight = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    own = torch.ones(2, 2).as_subclass(Subclass)
    modes = (torch.autocast("cpu"), torch.inference_mode(), Dispatches(), Intercepts())
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        with plain_eager_mode():
            product, of_subclass = x @ weight, own + 1
        assert torch.ones(3) == "intercepted"
    assert torch.equal(product, torch.full((2, 2), 2.0))
    assert product.dtype == torch.float32
    assert not product.requires_grad
    assert not product.is_inference()
    assert type(of_subclass) is Tensor


def test_afterwards_the_callers_settings_are_back() -> None:
    with torch.autocast("cpu"), torch.enable_grad():
        with plain_eager_mode():
            pass
        product = torch.ones(2, 2) @ torch.ones(2, 2, requires_grad=True)
        assert product.dtype == torch.bfloat16
        assert product.requires_grad
