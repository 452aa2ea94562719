"""Finds parameters and buffers of a model that differ from those it was compiled with."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nimble_fx.ir.types import dtype_name


class _Place(NamedTuple):
    """Where a module has a parameter or buffer."""

    kind: str
    store: dict[str, Tensor | None]
    key: str
    name: str

    @property
    def weight(self) -> Tensor | None:
        """The parameter or buffer; None if it is gone."""
        return self.store.get(self.key)


class CompiledWeights:
    """The parameters and buffers of a module when this object was made; a function has none.

    Attributes:
        are_tied: whether two names were those of one tensor (tied weights).
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        places = list(_places(model)) if isinstance(model, nn.Module) else []
        self._model = model
        self._types = {place.name: _type(place) for place in places}
        by_weight = defaultdict[int, list[_Place]](list)
        for place in places:
            by_weight[id(place.weight)].append(place)
        self._tied = [(first, each) for first, *others in by_weight.values() for each in others]
        self.are_tied = bool(self._tied)

    def untied(self) -> str | None:
        """The names of two weights that were tied when it was compiled and are not now, or None."""
        for one, other in self._tied:
            if one.weight is not other.weight:
                return f"{one.name} and {other.name}"
        return None

    def difference(self) -> str | None:
        """A description of the first weight whose type has changed, or that is gone; or None."""
        model = self._model
        now = {place.name: _type(place) for place in _places(model)} if self._types else {}
        for name, before in self._types.items():
            if now.get(name, "gone") != before:
                return f"{name} was {before}. It is now {now.get(name, 'gone')}"
        return None


def _places(model: Any) -> Iterator[_Place]:
    """The parameters and buffers that hold a tensor; a module with several names counts once."""
    for prefix, module in nn.Module.named_modules(model):
        for kind, store in (("parameter", module._parameters), ("buffer", module._buffers)):
            for key, weight in store.items():
                if weight is not None:
                    yield _Place(kind, store, key, f"{prefix}.{key}" if prefix else key)


def _type(place: _Place) -> str:
    weight = place.weight
    if not isinstance(weight, Tensor) or nn.parameter.is_lazy(weight):
        return type(weight).__name__
    is_strided = weight.layout is torch.strided
    layout = f"strides {list(weight.stride())}" if is_strided else str(weight.layout)
    tensor = f"{dtype_name(weight.dtype)}{list(weight.shape)} ({layout}) on {weight.device}"
    return f"a {place.kind}, {tensor}"
