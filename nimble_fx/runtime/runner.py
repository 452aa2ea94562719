"""The callable that runs a program on a device, captured if possible."""

from collections.abc import Callable, Sequence

from nimble_fx.codegen.load import load
from nimble_fx.devices import DeviceRuntime
from nimble_fx.fallback import Reporter
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.runtime.capture.autotuning import Autotuner, AutotuneResult
from nimble_fx.runtime.capture.capture_options import CaptureOptions
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.launch import IfShared, Launcher
from nimble_fx.torch_internals.dynamo.boxed import Boxed


def runner(
    schedules: Sequence[ScheduledProgram],
    device: DeviceRuntime,
    pool_group: PoolGroup,
    status: CaptureStatus,
    reporter: Reporter,
    capture: CaptureOptions,
    on_result: Callable[[AutotuneResult], None],
    if_shared: IfShared | None = None,
) -> Boxed:
    """Loads a program and returns its callable, captured unless `status` has a reason not to.

    Args:
        schedules: schedules of one program; if several, the first capture autotunes over them.
        device: the device that runs them.
        pool_group: the group that it shares with its forward or backward.
        status: says why it is not captured; a captured program keeps it up to date.
        reporter: lists fallbacks.
        capture: how captures and callers share memory.
        on_result: called with the result of autotuning.
        if_shared: see `Launcher`.
    """
    launchers = [
        Launcher(each.graph, load(each.source, each.file), each.constants, device, if_shared)
        for each in schedules
    ]
    if status.reason is not None:
        return pool_group.ordered(launchers[0]) if capture.is_backward else launchers[0]
    autotuner = Autotuner(launchers, on_result) if len(launchers) > 1 else None
    names = schedules[0].parameters
    return FrozenProgram(launchers[0], pool_group, status, reporter, capture, autotuner, names)
