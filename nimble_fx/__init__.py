"""Multi-stream CUDA graphs for PyTorch: `torch.compile(model, backend="nimble")`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nimble_fx.devices.specs import Device
from nimble_fx.errors import (
    FallbackError,
    FileError,
    InputError,
    NimbleError,
    NimbleWarning,
    NotPreparedError,
    OperatorError,
    OptionError,
    PassError,
    RewriteError,
    ScheduleError,
    StateError,
    UnsupportedError,
)
from nimble_fx.fallback import Fallback, fallbacks
from nimble_fx.frontend.program_file import load
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph
from nimble_fx.program import Program, programs
from nimble_fx.selection.candidate import Candidate
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.verify import verify_source
from nimble_fx.version import __version__

if TYPE_CHECKING:
    from nimble_fx import traces
    from nimble_fx.frontend.aot import Compiled, compile  # noqa: A004  # as torch.compile
    from nimble_fx.frontend.legacy_nimble import Nimble
    from nimble_fx.frontend.planning.plan import plan
    from nimble_fx.what_if.prediction import whatif

_LAZY = {
    "Compiled": "nimble_fx.frontend.aot",
    "compile": "nimble_fx.frontend.aot",
    "Nimble": "nimble_fx.frontend.legacy_nimble",
    "plan": "nimble_fx.frontend.planning.plan",
    "traces": "nimble_fx.traces",
    "whatif": "nimble_fx.what_if.prediction",
}
"""Modules of the names that are imported at their first use.

They need PyTorch's compiler, which takes a second to import, or are seldom used.
"""

__all__ = [
    "Activity",
    "Candidate",
    "Compiled",
    "Device",
    "Fallback",
    "FallbackError",
    "FileError",
    "InputError",
    "Nimble",
    "NimbleError",
    "NimbleWarning",
    "NotPreparedError",
    "OperatorError",
    "OptionError",
    "PassError",
    "Program",
    "Ref",
    "RewriteError",
    "ScheduleError",
    "StateError",
    "Task",
    "TaskGraph",
    "UnsupportedError",
    "__version__",
    "compile",
    "fallbacks",
    "load",
    "plan",
    "programs",
    "traces",
    "verify_source",
    "whatif",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Imports a name of `_LAZY` at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return getattr(module, name, module)
