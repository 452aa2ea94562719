"""Restores the state that a call to a model changes: values, attributes, random generators."""

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CellType
from typing import Any

import torch
from torch import Tensor

from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.frontend.models.reachable_state import Container, items_of, reachable_state
from nimble_fx.frontend.models.restored_values import restored_values


@contextmanager
def preserve_state(model: Callable[..., Any], example: Arguments) -> Iterator[None]:
    """Restores the state of the model after the block, however it ends.

    The state is all that `reachable_state` finds: the values of tensors, bit by bit, which tensors
    their gradients are, the items of containers, and the states of random generators; and those of
    Python's, NumPy's global one, and those of the devices of the model and the inputs.

    Args:
        model: a module or a function.
        example: the arguments of the call; not the tensors among them, of which it gets copies.

    Cost: that of `restored_values`: a copy of the tensors in host memory.
    """
    containers, tensors, generators = reachable_state(model, example.others)
    gradients = [gradient for tensor in tensors if (gradient := _gradient(tensor)) is not None]
    with ExitStack() as stack:
        stack.enter_context(restored_generators(generators, [*tensors, *example.tensors]))
        stack.enter_context(_restored_gradients(tensors))  # last: a gradient must fit its tensor
        stack.enter_context(restored_values([*tensors, *gradients]))
        # restored first, so that values are copied to the former tensors
        stack.enter_context(restored_containers(containers))
        yield


@contextmanager
def restored_containers(containers: Sequence[Container]) -> Iterator[None]:
    """Restores which objects are in containers, however the block ends."""
    before = [items_of(container) for container in containers]
    try:
        yield
    finally:
        for container, items in zip(containers, before, strict=True):
            if list(map(id, items_of(container))) != list(map(id, items)):
                _set_items(container, items)


def _set_items(container: Container, items: list[Any]) -> None:
    """Gives a container these items, which are as `items_of` returns them."""
    pairs = zip(items[::2], items[1::2], strict=True)
    match container:
        case list():
            list.__setitem__(container, slice(None), items)
        case deque():
            deque.clear(container)
            deque.extend(container, items)
        case set():
            set.clear(container)
            set.update(container, items)
        case CellType() if items:
            container.cell_contents = items[0]
        case CellType():
            del container.cell_contents
        case OrderedDict():
            OrderedDict.clear(container)
            for key, value in pairs:
                OrderedDict.__setitem__(container, key, value)
        case _:
            dict.clear(container)
            dict.update(container, pairs)


@contextmanager
def _restored_gradients(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores which tensors are the gradients of others, and which leaves require one."""
    before = [(tensor, tensor.requires_grad, _gradient(tensor)) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, is_required, gradient in before:
            if tensor.is_leaf and tensor.requires_grad != is_required:
                tensor.requires_grad_(is_required)
            if _gradient(tensor) is not gradient:
                tensor.grad = gradient


def _gradient(tensor: Tensor) -> Tensor | None:
    return tensor.grad if tensor.is_leaf else None


@contextmanager
def restored_generators(
    generators: Sequence[torch.Generator], tensors: Sequence[Tensor]
) -> Iterator[None]:
    """Restores random generators: these, Python's, NumPy's, the CPU's and the tensors' devices'."""
    before = [generator.get_state() for generator in generators]
    try:
        with _restored_global_generators(tensors):
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
