"""Restores the state that a call to a model changes: values, attributes, random generators."""

import inspect
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nimble_fx.torch_internals.names import is_wrapper_subclass
from nimble_fx.torch_internals.storages import storage_key

Container = list[Any] | dict[Any, Any] | set[Any]

_FUNCTIONS = (FunctionType, MethodType, partial)
_LIBRARIES = {"torch", "nimble_fx", *sys.stdlib_module_names}


@contextmanager
def preserve_state(model: Callable[..., Any], inputs: Sequence[object]) -> Iterator[None]:
    """Restores the state of the model after the block, however it ends.

    The state is the values of parameters, buffers, gradients and other tensors, bit by bit, which
    tensors the gradients are, the modules' attributes, the lists, dicts and sets in these, and the
    random generators: Python's, NumPy's global one, those of the devices of the model and the
    inputs, and each `torch.Generator` among them. The state of a function is that of its closure
    and the globals that it names, and of the functions among these; a method or callable object
    adds that of its object. Other objects are not looked into, nor are functions of PyTorch and of
    Python itself. Cost: a copy of the tensors in host memory; only the tensors that were written
    are copied back.
    """
    containers, tensors, generators = _state(model)
    gradients = [gradient for tensor in tensors if (gradient := _gradient(tensor)) is not None]
    of_inputs = [value for value in inputs if isinstance(value, Tensor)]
    generators += [value for value in inputs if isinstance(value, torch.Generator)]
    with ExitStack() as stack:
        stack.enter_context(_restored_global_generators([*tensors, *of_inputs]))
        stack.enter_context(_restored_generators(generators))
        stack.enter_context(_restored_gradients(tensors))  # last: a gradient must fit its tensor
        stack.enter_context(_restored_values([*tensors, *gradients]))
        # restored first, so that values are copied to the former tensors
        stack.enter_context(_restored_containers(containers))
        yield


def tensors_of(model: Callable[..., Any]) -> list[Tensor]:
    """The tensors besides its arguments that a call to the model may read or change, each once.

    Cost: a walk through what `preserve_state` looks into.
    """
    return _state(model)[1]


def _state(
    model: Callable[..., Any],
) -> tuple[list[Container], list[Tensor], list[torch.Generator]]:
    """The containers, tensors and generators that a call to the model may change, each once."""
    containers: dict[int, Container] = {}
    tensors: dict[int, Tensor] = {}
    generators: dict[int, torch.Generator] = {}
    functions: set[int] = set()
    stack: list[object] = [model] if isinstance(model, nn.Module) else _of_callable(model)
    while stack:
        value = stack.pop()
        if isinstance(value, _FUNCTIONS) and id(value) not in functions:
            functions.add(id(value))
            stack += _referenced(value)
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        if isinstance(value, torch.Generator):
            generators[id(value)] = value
        value = value.__dict__ if isinstance(value, nn.Module) else value
        if isinstance(value, (list, dict, set)) and id(value) not in containers:
            containers[id(value)] = value
            stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, tuple):
            stack += value
    return list(containers.values()), list(tensors.values()), list(generators.values())


def _of_callable(model: object) -> list[object]:
    """The objects that a call to the model refers to; the model is not a module."""
    if isinstance(model, _FUNCTIONS):
        return [model]
    return [_attributes(model), type(model).__call__]


def _referenced(function: FunctionType | MethodType | partial[Any]) -> list[object]:
    """The objects that a function refers to besides its arguments."""
    if isinstance(function, partial):
        return [*function.args, *function.keywords.values(), function.func]
    if isinstance(function, MethodType):
        owner, called = function.__self__, function.__func__
        if isinstance(owner, nn.Module):
            return [owner, called]
        return [] if _is_of_library(called) else [_attributes(owner), called]
    if _is_of_library(function):
        return []
    try:
        variables = inspect.getclosurevars(function)
    except ValueError:  # a variable of its closure has no value yet
        return []
    return [*variables.nonlocals.values(), *variables.globals.values()]


def _is_of_library(function: Callable[..., Any]) -> bool:
    """Whether a function is PyTorch's, this package's or Python's; looks through wrappers."""
    return str(function.__module__).partition(".")[0] in _LIBRARIES


def _attributes(value: object) -> object:
    """The attributes of an object, if it has a `__dict__` and is not a class or Python module."""
    is_namespace = isinstance(value, type | ModuleType)
    return None if is_namespace else getattr(value, "__dict__", None)


@contextmanager
def _restored_containers(containers: Sequence[Container]) -> Iterator[None]:
    """Restores which objects are in lists, dicts and sets.

    By the methods of the built-in types: those of subclasses may refuse to, or do more.
    """
    before = [_items(container) for container in containers]
    try:
        yield
    finally:
        for container, items in zip(containers, before, strict=True):
            if list(map(id, _items(container))) != list(map(id, items)):
                _set_items(container, items)


def _items(container: Container) -> list[Any]:
    """The items of a list or set, or the keys of a dict, each followed by its value."""
    match container:
        case list():
            return list.copy(container)
        case set():
            return [*set.__iter__(container)]
        case OrderedDict():
            return [*chain.from_iterable(OrderedDict.items(container))]
    return [*chain.from_iterable(dict.items(container))]


def _set_items(container: Container, items: list[Any]) -> None:
    """Gives a container these items, which are as `_items` returns them."""
    pairs = zip(items[::2], items[1::2], strict=True)
    match container:
        case list():
            list.__setitem__(container, slice(None), items)
        case set():
            set.clear(container)
            set.update(container, items)
        case OrderedDict():
            OrderedDict.clear(container)
            for key, value in pairs:
                OrderedDict.__setitem__(container, key, value)
        case _:
            dict.clear(container)
            dict.update(container, pairs)


@contextmanager
def _restored_gradients(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores which tensors are the gradients of others."""
    before = [(tensor, _gradient(tensor)) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, gradient in before:
            if _gradient(tensor) is not gradient:
                tensor.grad = gradient


def _gradient(tensor: Tensor) -> Tensor | None:
    return tensor.grad if tensor.is_leaf else None


@contextmanager
def _restored_values(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the values of tensors that were written to, and where in memory they were."""
    before = [(_version(tensor), tensor.detach().to("cpu", copy=True)) for tensor in tensors]
    places = [(t, place, t.detach()) for t in tensors if (place := _place(t))]
    try:
        yield
    finally:
        for tensor, place, original in places:
            if original.untyped_storage().nbytes() != place.nbytes:
                original.untyped_storage().resize_(place.nbytes)
            if _place(tensor) != place:
                tensor.data = original
        for tensor, (version, value) in zip(tensors, before, strict=True):
            if _is_written(tensor, version, value):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(value)


class _Place(NamedTuple):
    """A tensor's storage and layout, which `resize_`, `set_`, `.data` and others change."""

    storage: int
    nbytes: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _place(tensor: Tensor) -> _Place | None:
    """A tensor's storage and layout; None if it has no storage of its own."""
    if tensor.layout is not torch.strided or is_wrapper_subclass(tensor):
        return None
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
    place = storage_key(tensor), storage.nbytes(), offset, tensor.shape, tensor.stride()
    return _Place(*place, tensor.dtype)


def _is_written(tensor: Tensor, version: int, value: Tensor) -> bool:
    """Whether a tensor changed: compares bits, or the version if it has no storage of its own.

    Versions are not enough, because BatchNorm updates its statistics without a new version.
    """
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or is_wrapper_subclass(tensor):
        return _version(tensor) != version
    return not torch.equal(_bytes(tensor.detach().cpu()), _bytes(value))


def _version(tensor: Tensor) -> int:
    """Autograd's version counter, which in-place writes advance; 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


@contextmanager
def _restored_generators(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Restores the states of generators."""
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


@contextmanager
def _restored_global_generators(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores the random generators of Python, NumPy, the CPU and the tensors' devices."""
    devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")  # PyTorch 2.11 takes no None
    state = random.getstate()
    numpy: Any = sys.modules.get("numpy")  # which PyTorch can do without
    numpys = numpy.random.get_state(legacy=False) if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=list(devices), device_type=kind):
            yield
    finally:
        random.setstate(state)
        if numpys is not None:
            numpy.random.set_state(numpys)
