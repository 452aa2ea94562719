"""PyTorch's own samples of its operators and modules: calls that its test suite makes."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_profile = settings.get_current_profile_name()
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

settings.load_profile(_profile)  # PyTorch's tables set one of their own, of ten examples

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)

_OPERATORS = {operator.full_name: operator for operator in op_db}
_MODULES = {info.name: info for info in module_db}
_UNINITIALIZED = ("empty", "new_empty", "resize")


@dataclass(frozen=True)
class Sample:
    """A call of an operator or of a module.

    Attributes:
        name: which operator and which of its samples.
        call: the function or the module.
        args, kwargs: what it is called with.
        differentiable: what of its results has gradients.
        has_values: whether it writes all of what it returns.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiable: Callable[[Any], Any] = lambda result: result
    has_values: bool = True

    @property
    def state(self) -> list[Tensor]:
        """The parameters and buffers of a module; an operator has none."""
        return [*self.call.state_dict().values()] if isinstance(self.call, nn.Module) else []

    @property
    def parameters(self) -> list[Tensor]:
        """Those of a module; an operator has none."""
        return [*self.call.parameters()] if isinstance(self.call, nn.Module) else []

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy of `args` and `kwargs`, with the same strides and the same sharing of memory."""
        memo: dict[int, Any] = {}

        def copied(value: Tensor) -> Tensor:
            twin: Tensor = copy.deepcopy(value.detach(), memo)
            return twin.requires_grad_(value.requires_grad)

        return pytree.tree_map_only(Tensor, copied, (self.args, self.kwargs))


def names() -> list[str]:
    """Of all operators and modules."""
    return [*_OPERATORS, *_MODULES]


def samples(name: str, dtype: torch.dtype, gradients: bool) -> Iterator[Sample]:
    """An operator's or a module's samples with elements of a type; none if it takes no such."""
    torch.manual_seed(0)
    return (_of_module if name in _MODULES else _of_operator)(name, dtype, gradients)


def _of_operator(name: str, dtype: torch.dtype, gradients: bool) -> Iterator[Sample]:
    operator = _OPERATORS[name]
    supported = operator.supported_backward_dtypes if gradients else operator.supported_dtypes
    if dtype not in supported("cpu") or (gradients and not operator.supports_autograd):
        return
    has_values = not name.startswith(_UNINITIALIZED)
    for i, sample in enumerate(operator.sample_inputs("cpu", dtype, requires_grad=gradients)):
        args, read = (sample.input, *sample.args), sample.output_process_fn_grad
        yield Sample(f"{name} {i}", operator.op, args, sample.kwargs, read, has_values)


def _of_module(name: str, dtype: torch.dtype, gradients: bool) -> Iterator[Sample]:
    info = _MODULES[name]
    if dtype not in info.dtypes:
        return
    for training in (False, True):
        given = info.module_inputs_func(info, "cpu", dtype, gradients, training)
        for i, each in enumerate(given):
            make, forward = each.constructor_input, each.forward_input
            module = info.module_cls(*make.args, **make.kwargs).to(dtype).train(training)
            mode = "training" if training else "inference"
            yield Sample(f"{name} {mode} {i}", module, forward.args, forward.kwargs)


def bad_samples(name: str) -> Iterator[Sample]:
    """Calls of an operator that are errors in eager."""
    operator = _OPERATORS.get(name)
    if operator is None or operator.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for i, bad in enumerate(operator.error_inputs("cpu")):
        sample = bad.sample_input
        args = (sample.input, *sample.args)
        yield Sample(f"{name} {i}, an error", operator.op, args, sample.kwargs)
