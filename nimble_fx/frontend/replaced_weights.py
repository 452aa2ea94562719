"""Whether parameters and buffers of a model are other than at its compile, to explain an error."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from nimble_fx.ir.task_graph import dtype_name


class WeightTypes:
    """What the parameters and buffers of a module were when this object was made."""

    def __init__(self, model: Callable[..., Any]) -> None:
        """Looks at the model; a function has none."""
        self._model = model
        self._types = {name: _type(weight) for name, weight in _weights(model).items()}

    def difference(self) -> str | None:
        """What the first one is that is of another type now, or gone; None if there is none."""
        weights = _weights(self._model)
        for name, before in self._types.items():
            now = _type(weights[name]) if name in weights else "gone"
            if now != before:
                return f"{name} was {before}, and is {now}"
        return None


def _weights(model: Callable[..., Any]) -> Mapping[str, Tensor]:
    if not isinstance(model, nn.Module):
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def _type(weight: Tensor) -> str:
    strides = f", strides {list(weight.stride())}" if weight.dim() > 1 else ""
    return f"{dtype_name(weight.dtype)}{list(weight.shape)}{strides} on {weight.device}"
