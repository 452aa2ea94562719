"""Python functions as work of a stream: enqueued, captured and replayed."""

import traceback
from collections.abc import Callable
from itertools import count

import torch

from tests.cuda_runtime import library
from tests.cuda_runtime.below_dispatch import BelowDispatch, WithoutDynamo

MAX_ERRORS = 5

_errors: list[str] = []
_functions: dict[int, Callable[[], object]] = {}
_numbers = count(1)


def enqueue(label: str, function: Callable[[], object], device: int | None = None) -> None:
    """Runs a function on the current stream of a device, below dispatch; or captures it."""
    for number in library.take_dropped():
        _functions.pop(number, None)
    number = next(_numbers)
    _functions[number] = function
    index = torch.cuda.current_device() if device is None else device
    stream = torch._C._cuda_getCurrentRawStream(index)
    with torch.cuda.device(index):  # a default stream, 0, is the current device's
        torch.cuda.check_error(library.enqueue(stream, label, _run, number))


def settle() -> list[str]:
    """Waits for all devices; returns the errors of host functions since the last call."""
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    found = list(_errors)
    _errors.clear()
    return found


def note_error(error: BaseException) -> None:
    """Keeps an error of a host function: it cannot be raised where the work was enqueued."""
    if len(_errors) < MAX_ERRORS:
        _errors.append("".join(traceback.format_exception(error)))


def _run_python(number: int) -> None:
    with WithoutDynamo():
        try:
            with BelowDispatch():
                _functions[number]()
        except BaseException as error:
            note_error(error)


_run = library.HostFunction(_run_python)
torch._dynamo.eval_frame.skip_code(_run_python.__code__)
