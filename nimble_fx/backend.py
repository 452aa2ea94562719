"""`torch.compile(model, backend="nimble")`: the backend function that PyTorch calls."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from nimble_fx.compiler import Compiler, lower
from nimble_fx.errors import OptionError
from nimble_fx.fallback import clear_fallbacks
from nimble_fx.options import Options
from nimble_fx.program import clear_programs
from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.caches import reset_with_dynamo
from nimble_fx.torch_internals.dynamo.errors import for_user


def nimble(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Schedules, emits, verifies and loads a Dynamo graph; captures it on CUDA when it is called.

    Args:
        gm: Dynamo's graph of the user's function.
        example_inputs: one set of inputs for it.
        mode: `torch.compile`'s mode.
        options: see `nimble_fx.options.Options`.

    Raises:
        OptionError: before any work, if an option is not valid.
    """
    parsed = _parse(mode, options)
    reset_with_dynamo(nimble)
    return lower(gm, example_inputs, Compiler(gm, parsed, ThisMachine(parsed)))


def reset() -> None:
    """Empties the lists of programs and fallbacks, for `torch.compiler.reset()`.

    Compiled models keep working.
    """
    clear_programs()
    clear_fallbacks()


nimble.reset = reset  # type: ignore[attr-defined]  # torch.compiler.reset() looks here


def _parse(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    try:
        return Options.parse(mode, options)
    except OptionError as error:
        here = inspect.currentframe()  # hides Dynamo's own frames from the user
        raise for_user(error, first_useful_frame=here) from None
