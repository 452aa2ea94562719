"""`nimble_fx.Nimble`: the interface of the original system's `torch.cuda.Nimble`."""

from typing import Any

import torch
from torch import Tensor, nn

from nimble_fx.errors import NotPreparedError, OptionError
from nimble_fx.frontend.aot import Compiled, compile  # noqa: A004  # as torch.compile
from nimble_fx.frontend.models.model_function import name_of
from nimble_fx.frontend.models.shared_copy import shared_copy
from nimble_fx.program import Program


class Nimble:
    """A module that is compiled by `prepare` and then called, as with `torch.cuda.Nimble`.

    Code written for that system (Kwon et al., NeurIPS 2020; github.com/snuspl/nimble) runs with
    this name in place of `torch.cuda.Nimble`. Differences: outputs are copied out of the graph's
    memory (there the next call overwrote them), inputs of other shapes compile again, and the
    module may be on any device.
    """

    def __init__(self, original_module: nn.Module) -> None:
        """Wraps a module; `prepare` compiles it.

        Raises:
            OptionError: it is not a module.
        """
        if not isinstance(original_module, nn.Module):
            raise OptionError(
                f"Nimble takes a torch.nn.Module, not {type(original_module).__name__}: "
                "nimble_fx.compile takes functions and exported programs too"
            )
        self.original_module = original_module
        self._compiled: Compiled | None = None

    def prepare(
        self,
        dummy_inputs: Tensor | tuple[Tensor, ...] | list[Tensor],
        training: bool = False,
        use_multi_stream: bool = True,
        relaxed: bool = False,
    ) -> None:
        """Traces, schedules and captures the module; see `nimble_fx.compile`.

        Calls use the module's parameters and buffers, also those that replace them later. As in the
        original, later changes to its structure, mode or other attributes have no effect.

        Args:
            dummy_inputs: a tensor, or a tuple or list of the positional arguments.
            training: False: calls are those of `module.eval()`, without gradients. True: they are
                those of `module.train()`, the backward is compiled, and parameters without a
                `.grad` get one of zeros, as in the original. The module's own mode does not change.
            use_multi_stream: False selects the policy "serial", one stream. In the original it
                applied to the forward alone, and the backward had one stream; here the backward is
                parallel too.
            relaxed: has no effect. In the original it captured with
                `cudaStreamCaptureModeRelaxed`, which allows CUDA calls that are forbidden during a
                capture. Here captures forbid them only to the capturing thread, which has made
                its own such calls in the warm-up.

        Raises:
            OptionError: the dummy inputs are not tensors.
        """
        _check_dummy_inputs(dummy_inputs)
        module = shared_copy(self.original_module).train(training)
        policy = "nimble" if use_multi_stream else "serial"
        self._compiled = compile(module, dummy_inputs, training=training, policy=policy)
        if training:
            _allocate_gradients(module)

    @property
    def prepared(self) -> bool:
        """Whether `prepare` was called."""
        return self._compiled is not None

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that it runs; empty before `prepare`."""
        return self._compiled.programs if self._compiled is not None else ()

    def __call__(self, *args: Any) -> Any:
        """Calls the compiled module.

        Raises:
            NotPreparedError: `prepare` was not called.
        """
        if self._compiled is None:
            name = name_of(self.original_module)
            raise NotPreparedError(
                f"Nimble({name}) is not prepared: call prepare(dummy_inputs) on it first"
            )
        return self._compiled(*args)

    def __repr__(self) -> str:
        state = repr(self._compiled) if self._compiled is not None else "not prepared"
        return f"Nimble({name_of(self.original_module)}: {state})"


def _check_dummy_inputs(dummy_inputs: object) -> None:
    """Raises OptionError for inputs that the original refused; it is a ValueError, as there."""
    inputs = [dummy_inputs] if isinstance(dummy_inputs, Tensor) else dummy_inputs
    if not isinstance(inputs, (tuple, list)) or not inputs:
        raise OptionError(
            f"dummy_inputs is {type(dummy_inputs).__name__}; it takes a tensor, or a tuple or list "
            "of at least one"
        )
    for i, value in enumerate(inputs):
        if not isinstance(value, Tensor):
            raise OptionError(f"dummy_inputs[{i}] is {type(value).__name__}; it takes tensors")


def _allocate_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
