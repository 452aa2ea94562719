"""Multi-stream CUDA graphs for PyTorch: `torch.compile(model, backend="nimble")`."""

from nimble_fx.errors import (
    NimbleError,
    NimbleWarning,
    OptionError,
    ScheduleError,
    UnsupportedError,
)
from nimble_fx.fallback import Fallback, fallbacks
from nimble_fx.ir import Ref, Task, TaskGraph
from nimble_fx.program import Program, programs
from nimble_fx.verify import verify_source
from nimble_fx.version import __version__

__all__ = [
    "Fallback",
    "NimbleError",
    "NimbleWarning",
    "OptionError",
    "Program",
    "Ref",
    "ScheduleError",
    "Task",
    "TaskGraph",
    "UnsupportedError",
    "__version__",
    "fallbacks",
    "programs",
    "verify_source",
]
