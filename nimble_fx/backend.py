"""`torch.compile(model, backend="nimble")`: what PyTorch calls."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from nimble_fx import fallback
from nimble_fx import program as registry
from nimble_fx.compiler import Compiler, lower
from nimble_fx.errors import OptionError
from nimble_fx.options import Options
from nimble_fx.this_machine import this_machine
from nimble_fx.torch_internals.dynamo_errors import DynamoOptionError


def nimble(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend: schedules, emits, verifies and loads a Dynamo graph; freezes it on CUDA.

    Args:
        gm: Dynamo's graph of the user's function.
        example_inputs: one set of inputs for it.
        mode: `torch.compile`'s mode.
        options: see `nimble_fx.options.Options`.

    Raises:
        OptionError: before any work, if an option is not valid.
    """
    parsed = _parse(mode, options)
    return lower(gm, example_inputs, Compiler(gm, parsed, this_machine(parsed)))


def reset() -> None:
    """Forgets what was compiled, for `torch.compiler.reset()`. Compiled models keep working."""
    registry.clear()
    fallback.clear()


nimble.reset = reset  # type: ignore[attr-defined]  # torch.compiler.reset() looks here


def _parse(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    try:
        return Options.parse(mode, options)
    except OptionError as error:
        here = inspect.currentframe()  # what Dynamo did before is not the user's concern
        raise DynamoOptionError(str(error), first_useful_frame=here) from None
