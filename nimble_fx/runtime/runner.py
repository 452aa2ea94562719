"""From schedules of a program to the callable that runs it, captured where that is possible."""

from collections.abc import Callable, Sequence

from nimble_fx.codegen.load import load
from nimble_fx.devices import DeviceRuntime
from nimble_fx.fallback import Reporter
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.runtime.autotuning import Autotuner, AutotuneResult
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.runtime.freeze import CaptureOptions, Frozen
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.pool_group import Boxed, PoolGroup


def runner(
    schedules: Sequence[ScheduledProgram],
    device: DeviceRuntime,
    pool_group: PoolGroup,
    status: CaptureStatus,
    reporter: Reporter,
    capture: CaptureOptions,
    on_result: Callable[[AutotuneResult], None],
) -> Boxed:
    """The loaded module on a device, captured unless its status has a reason against that.

    Args:
        schedules: of one program; if several, the first capture times all and keeps the fastest.
        device: runs them.
        pool_group: the memory and the turns that it shares with its forward or backward.
        status: says why it is not to be captured; a captured program keeps it up to date.
        reporter: lists what runs slower than the user asked for.
        capture: how captures and callers share memory.
        on_result: receives what each schedule took, once the fastest is known.
    """
    launchers = [
        Launcher(each.graph, load(each.source, each.file), each.constants, device)
        for each in schedules
    ]
    if status.reason is not None:
        return pool_group.unfrozen(launchers[0]) if capture.is_backward else launchers[0]
    autotuner = Autotuner(launchers, on_result) if len(launchers) > 1 else None
    return Frozen(launchers[0], pool_group, status, reporter, capture, autotuner)
