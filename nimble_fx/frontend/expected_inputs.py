"""The tensors that a compiled model takes in each call, and in what another call's differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nimble_fx.torch_internals.names import TensorGuards
from nimble_fx.torch_internals.storages import storage_key

PLAIN = (Tensor, nn.Parameter)
"""The types of tensors that operators take as they are."""


@dataclass(frozen=True)
class ExpectedTensor:
    """What must be the same of a tensor in each call.

    In inference it does not matter whether it requires gradients, nor whether it was made in
    `torch.inference_mode()`: `autograd` is None.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    math_bits: tuple[bool, bool]
    autograd: tuple[bool, bool] | None

    @staticmethod
    def like(name: str, tensor: Tensor, training: bool) -> "ExpectedTensor":
        """What is expected of tensors that take the place of this one."""
        autograd = (tensor.requires_grad, tensor.is_inference()) if training else None
        return ExpectedTensor(
            name,
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            (tensor.is_conj(), tensor.is_neg()),
            autograd,
        )

    def difference(self, value: object) -> str | None:
        """In what a value is not as expected, as a sentence; None if it is."""
        if not isinstance(value, Tensor) or type(value) not in PLAIN:
            return f"{self.name} is of type {type(value).__name__}, and was a tensor"
        if value.layout is not self.layout:
            return f"{self.name} has the layout {value.layout}, and had {self.layout}"
        found = ExpectedTensor.like(self.name, value, self.autograd is not None)
        pairs = [
            ("shape", list(found.shape), list(self.shape)),
            ("stride", found.stride, self.stride),
            ("dtype", found.dtype, self.dtype),
            ("device", found.device, self.device),
            ("conjugate and negative bits", found.math_bits, self.math_bits),
            ("(requires_grad, is_inference)", found.autograd, self.autograd),
        ]
        for attribute, actual, expected in pairs:
            if actual != expected:
                return f"{self.name} has the {attribute} {actual}, and had {expected}"
        return None


class ExpectedTensors:
    """The tensors of a call, all of them different objects.

    `fit` is called in each call and lets PyTorch compare, which is fast and strict; `difference`
    decides where it finds any.
    """

    def __init__(
        self, names: Sequence[str], tensors: Sequence[Tensor], training: bool, separate: int
    ) -> None:
        """Expects tensors like these.

        Args:
            names: their names in messages.
            tensors: those of the call that was compiled.
            training: whether gradients matter.
            separate: so many of the first share no memory; 0 where that does not matter, because
                the program writes to none.
        """
        self._expected = [
            ExpectedTensor.like(name, tensor, training)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        self._separate = separate
        self._expect_exactly(tensors)

    def fit(self, leaves: Sequence[object], state: Sequence[object]) -> bool:
        """Whether the tensors of a call are surely like those that are expected.

        Args:
            leaves: the first of them, in which those are that share no memory.
            state: the others.
        """
        fit: bool = self._check(*leaves, *state)
        return fit and self._are_separate(leaves)

    def difference(self, tensors: Sequence[object]) -> str | None:
        """In what the tensors of a call differ; None if they do not, and `fit` will know it."""
        firsts: dict[int, str] = {}
        for expected, value in zip(self._expected, tensors, strict=True):
            found = expected.difference(value)
            if found is not None:
                return found
            first = firsts.setdefault(id(value), expected.name)
            if first is not expected.name:
                return f"{first} and {expected.name} are the same tensor, and were two"
        if not self._are_separate(tensors):
            names = ", ".join(each.name for each in self._expected[: self._separate])
            return f"two of {names} share memory, some of which is written, and did not"
        self._expect_exactly(tensors)
        return None

    def _expect_exactly(self, tensors: Sequence[object]) -> None:
        """Lets `fit` accept tensors that differ from these in values only."""
        guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._check = guards.check

    def _are_separate(self, tensors: Sequence[object]) -> bool:
        if not self._separate:
            return True
        keys = {storage_key(value) for value in tensors[: self._separate]}  # type: ignore[arg-type]
        return len(keys) == self._separate
