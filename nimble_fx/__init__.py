"""Multi-stream CUDA graphs for PyTorch: `torch.compile(model, backend="nimble")`."""

from nimble_fx.errors import (
    FileError,
    InputError,
    NimbleError,
    NimbleWarning,
    OptionError,
    ScheduleError,
    UnsupportedError,
)
from nimble_fx.ir import Ref, Task, TaskGraph
from nimble_fx.program import Program, load, programs
from nimble_fx.verify import verify_source
from nimble_fx.version import __version__

__all__ = [
    "FileError",
    "InputError",
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
    "load",
    "programs",
    "verify_source",
]
