"""Multi-stream CUDA graphs for PyTorch: `torch.compile(model, backend="nimble")`."""

from nimble_fx.ahead import Compiled, compile  # noqa: A004  # as torch.compile
from nimble_fx.errors import (
    NimbleError,
    NimbleWarning,
    NotPreparedError,
    OptionError,
    ScheduleError,
    UnsupportedError,
)
from nimble_fx.ir import Ref, Task, TaskGraph
from nimble_fx.original import Nimble
from nimble_fx.planning import plan
from nimble_fx.program import Program, programs
from nimble_fx.verify import verify_source
from nimble_fx.version import __version__

__all__ = [
    "Compiled",
    "Nimble",
    "NimbleError",
    "NimbleWarning",
    "NotPreparedError",
    "OptionError",
    "Program",
    "Ref",
    "ScheduleError",
    "Task",
    "TaskGraph",
    "UnsupportedError",
    "__version__",
    "compile",
    "plan",
    "programs",
    "verify_source",
]
