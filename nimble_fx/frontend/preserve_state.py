"""What a call of a model leaves behind, undone: values, attributes and random numbers."""

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
    """Within, the model may be called; afterwards all is as before, however the block ends.

    That is: the bits of parameters and buffers, the modules' attributes, and the random numbers of
    Python and of the devices that the model and the inputs are on. A function's modules and tensors
    are those of its closure and the globals that it names. Cost: a copy of parameters and buffers
    in the host's memory; only what was written is copied back.
    """
    modules, tensors = _state(model)
    with ExitStack() as stack:
        stack.enter_context(_random_numbers([*tensors, *inputs]))
        stack.enter_context(_values(tensors))
        for module in modules:  # undone first: the values go back into the tensors that were there
            stack.enter_context(_attributes(module))
        yield


def _state(model: Callable[..., Any]) -> tuple[list[nn.Module], list[Tensor]]:
    """The modules and tensors that a call of the model may change, each once."""
    owners = [model] if isinstance(model, nn.Module) else _mentioned(model)
    roots = [owner for owner in owners if isinstance(owner, nn.Module)]
    modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
    tensors = [owner for owner in owners if isinstance(owner, Tensor)]
    for module in modules:
        tensors += [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return modules, list({id(tensor): tensor for tensor in tensors}.values())


def _mentioned(function: object) -> list[object]:
    """What a function has at hand besides its arguments."""
    if isinstance(function, partial):
        bound = [*function.args, *function.keywords.values()]
        return [*bound, *_mentioned(function.func)]
    if isinstance(function, MethodType):
        return [function.__self__, *_mentioned(function.__func__)]
    if not isinstance(function, FunctionType):
        return []
    variables = inspect.getclosurevars(function)
    return [*variables.nonlocals.values(), *variables.globals.values()]


@contextmanager
def _attributes(module: nn.Module) -> Iterator[None]:
    """Gives the module its attributes back, and which tensors its parameters and buffers are."""
    tables: list[dict[str, Any]] = [module.__dict__, module._parameters, module._buffers]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, saved in zip(tables, before, strict=True):
            table.clear()
            table.update(saved)


@contextmanager
def _values(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Gives the tensors that are written to their values back."""
    before = [(_version(tensor), tensor.detach().to("cpu", copy=True)) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, (version, value) in zip(tensors, before, strict=True):
                if _is_written(tensor, version, value):
                    tensor.copy_(value)


def _is_written(tensor: Tensor, version: int, value: Tensor) -> bool:
    """Whether it differs from what it was; by its bits where it has some of its own.

    Autograd's version is not enough: BatchNorm updates its statistics without a new one.
    """
    if tensor.layout is not torch.strided or is_wrapper_subclass(tensor):
        return _version(tensor) != version
    return not torch.equal(_bytes(tensor.detach().cpu()), _bytes(value))


def _version(tensor: Tensor) -> int:
    """How often autograd saw the tensor written to; it does not look at inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


@contextmanager
def _random_numbers(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Puts the generators of Python, the CPU and the tensors' devices back where they were."""
    devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")  # PyTorch 2.11 takes no None
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=list(devices), device_type=kind):
            yield
    finally:
        random.setstate(state)
