"""Restores the state that a call of a model changes: values, attributes, random generators."""

import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from nimble_fx.torch_internals.names import is_wrapper_subclass


@contextmanager
def preserve_state(model: Callable[..., Any], inputs: Sequence[Tensor]) -> Iterator[None]:
    """Restores the state of the model after the block, however it ends.

    The state is the values of parameters and buffers, bit by bit, the modules' attributes, and the
    random generators of Python and of the devices of the model and the inputs. A function's modules
    and tensors are those of its closure and the globals that it names. Cost: a copy of parameters
    and buffers in the host's memory; only tensors that were written are copied back.
    """
    modules, tensors = _state(model)
    with ExitStack() as stack:
        stack.enter_context(_restored_generators([*tensors, *inputs]))
        stack.enter_context(_restored_values(tensors))
        for module in modules:  # restored first, so that values are copied to the former tensors
            stack.enter_context(_restored_attributes(module))
        yield


def _state(model: Callable[..., Any]) -> tuple[list[nn.Module], list[Tensor]]:
    """The modules and tensors that a call of the model may change, each once."""
    objects = [model] if isinstance(model, nn.Module) else _referenced(model)
    roots = [each for each in objects if isinstance(each, nn.Module)]
    modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
    tensors = [each for each in objects if isinstance(each, Tensor)]
    for module in modules:
        tensors += [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return modules, list({id(tensor): tensor for tensor in tensors}.values())


def _referenced(function: object) -> list[object]:
    """The objects that a function refers to besides its arguments."""
    if isinstance(function, partial):
        bound = [*function.args, *function.keywords.values()]
        return [*bound, *_referenced(function.func)]
    if isinstance(function, MethodType):
        return [function.__self__, *_referenced(function.__func__)]
    if not isinstance(function, FunctionType):
        return []
    variables = inspect.getclosurevars(function)
    return [*variables.nonlocals.values(), *variables.globals.values()]


@contextmanager
def _restored_attributes(module: nn.Module) -> Iterator[None]:
    """Restores the module's attributes, and which tensors its parameters and buffers are."""
    tables: list[dict[str, Any]] = [module.__dict__, module._parameters, module._buffers]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, saved in zip(tables, before, strict=True):
            table.clear()
            table.update(saved)


@contextmanager
def _restored_values(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the values of tensors that were written to."""
    before = [(_version(tensor), tensor.detach().to("cpu", copy=True)) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, (version, value) in zip(tensors, before, strict=True):
                if _is_written(tensor, version, value):
                    tensor.copy_(value)


def _is_written(tensor: Tensor, version: int, value: Tensor) -> bool:
    """Whether a tensor changed: compares bits, or for sparse tensors and subclasses the version.

    The version alone is not enough: BatchNorm updates its statistics without a new one.
    """
    if tensor.layout is not torch.strided or is_wrapper_subclass(tensor):
        return _version(tensor) != version
    return not torch.equal(_bytes(tensor.detach().cpu()), _bytes(value))


def _version(tensor: Tensor) -> int:
    """Autograd's version counter, which in-place writes advance; 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


@contextmanager
def _restored_generators(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the random generators of Python, the CPU and the tensors' devices."""
    devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")  # PyTorch 2.11 takes no None
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=list(devices), device_type=kind):
            yield
    finally:
        random.setstate(state)
