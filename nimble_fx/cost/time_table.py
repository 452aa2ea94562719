"""Tables of measured times on disk: a JSON file for each hardware and PyTorch version.

Processes and threads may share a directory: a writer takes the file's lock, reads the file again
and replaces it atomically, so that no time is lost and no reader sees half a file.
"""

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from nimble_fx.cost.work import Work
from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import FileError
from nimble_fx.serialization.atomic_write import write_atomically

_FORMAT = 5
"""The version of the format and of the measurements; it is part of the files' names."""

LOCK_SECONDS = 60.0
"""The longest wait for other writers, each of which takes milliseconds."""


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """The measured time of tasks of one signature.

    Attributes:
        operator: the operator's name, such as "aten.mm.default".
        us: microseconds.
        work: the work of each such task, to interpolate times of similar tasks.
    """

    operator: str
    us: float
    work: Work


MeasuredTimes = Mapping[str, MeasuredTime]
"""By signature; see `signature.signature`."""

_MOST = 1e30  # more than any figure of a kernel
_NUMBERS = {field.name for field in fields(Work) if field.type in (int, float)}


@dataclass(frozen=True)
class TimeTable:
    """A file of measured times.

    Attributes:
        path: its path, where it may not exist yet.
        times: its contents when it was last read or written.
    """

    path: Path
    times: MeasuredTimes

    @staticmethod
    def of(directory: Path, device: DeviceRuntime) -> "TimeTable":
        """The table of a device in a directory; empty if the file does not exist.

        Raises:
            FileError: the file is not a table or cannot be read.
        """
        path = directory / f"times-{re.sub('[^A-Za-z0-9.]+', '-', environment(device))}.json"
        return TimeTable(path, _read(path))

    def with_more(self, times: MeasuredTimes) -> "TimeTable":
        """The table with these times added, and with those that others have written meanwhile.

        Raises:
            FileError: the file cannot be written, or is not a table.
        """
        if not times:
            return self
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock", timeout=LOCK_SECONDS):
                merged = {**_read(self.path), **times}
                write_atomically(self.path.parent, self.path.name, _encoded(merged))
        except OSError as error:  # a timeout of the lock is one too
            raise FileError(f"{self.path} cannot be written: {error}") from error
        return TimeTable(self.path, merged)


def environment(device: DeviceRuntime) -> str:
    """The hardware, threads and versions that times depend on. Cost: milliseconds."""
    hardware = device.hardware or ""
    if hardware == "cpu":
        name = _processor()
        hardware = f"{name} {os.cpu_count()} cpus {torch.get_num_threads()} threads"
    cuda = f" cuda {torch.version.cuda}" if torch.version.cuda else ""
    return f"{hardware} torch {torch.__version__}{cuda} format {_FORMAT}"


def _processor() -> str:
    """The model of the CPU and the instruction set that PyTorch uses: "AMD EPYC AVX512"."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


def _encoded(times: MeasuredTimes) -> str:
    plain = {
        name: asdict(timed) | {"work": asdict(timed.work) | {"dtype": str(timed.work.dtype)}}
        for name, timed in sorted(times.items())
    }
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in plain.items())
    return f"{{\n{rows}\n}}\n"


def _read(path: Path) -> dict[str, MeasuredTime]:
    """The times in a file; empty if it does not exist.

    Raises:
        FileError: it is not a table or cannot be read.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {name: _decoded(row) for name, row in rows.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        message = f"{path} is not a table of measured times ({error!r}); delete it"
        raise FileError(message) from error


def _decoded(row: Any) -> MeasuredTime:
    """The time in a row of the file; `_read` handles the errors of an invalid one."""
    work = dict(row["work"])
    dtype = getattr(torch, str(work.pop("dtype")).removeprefix("torch."))
    time = MeasuredTime(row["operator"], row["us"], Work(**work, dtype=dtype))
    valid = [
        isinstance(dtype, torch.dtype),
        type(time.operator) is str,
        type(time.us) is float and 1 / _MOST <= time.us <= _MOST,
    ]
    for field in fields(Work):
        value = getattr(time.work, field.name)
        if field.name in _NUMBERS:
            valid += [type(value) in (int, float), 0 <= value <= _MOST]
        elif field.name != "dtype":
            valid.append(type(value) is bool)
    if row.keys() != {"operator", "us", "work"} or not all(valid):
        raise ValueError(f"{row} is not a measured time")
    return time
