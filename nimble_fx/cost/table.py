"""What tasks were measured to take, kept on disk: a JSON file for each hardware and PyTorch.

Processes and threads may share a directory: who adds to a file holds its lock, reads it again and
writes it whole, so that nothing is lost and no reader sees half a file.
"""

import json
import math
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

FORMAT = 3
"""The version of the format, and of how times are taken; files of another one have another name."""

LOCK_SECONDS = 60.0
"""How long to wait for another process that adds to the file: that takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What was measured of tasks that are alike.

    Attributes:
        operator: "aten.mm.default".
        us: microseconds.
        work: what they do, to judge others by that are nearly alike.
    """

    operator: str
    us: float
    work: Work


Times = Mapping[str, Timed]
"""By signature; see `signature.signature`."""

_NUMBERS = ("flops", "nbytes", "n_elements", "n_channels")


@dataclass(frozen=True)
class Table:
    """A file of measured times.

    Attributes:
        path: where it is, or will be.
        times: what it held when it was read or written last.
    """

    path: Path
    times: Times

    @staticmethod
    def of(directory: Path, device: DeviceRuntime) -> "Table":
        """The table of a device in a directory; an empty one if there is none yet.

        Raises:
            FileError: there is a file that is no table or cannot be read.
        """
        path = directory / f"times-{re.sub('[^A-Za-z0-9.]+', '-', environment(device))}.json"
        return Table(path, _read(path))

    def with_more(self, times: Times) -> "Table":
        """The table with these times too, and with what others have written meanwhile.

        Raises:
            FileError: the file cannot be written, or is no table.
        """
        if not times:
            return self
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock", timeout=LOCK_SECONDS):
                merged = {**_read(self.path), **times}
                write_atomically(self.path.parent, self.path.name, _encoded(merged))
        except OSError as error:  # a lock that stays taken is one too
            raise FileError(f"{self.path} cannot be written: {error}") from error
        return Table(self.path, merged)


def environment(device: DeviceRuntime) -> str:
    """What times depend on besides the task: hardware, threads, versions. Cost: milliseconds."""
    hardware = device.hardware or ""
    if hardware == "cpu":
        name = _processor()
        hardware = f"{name} {os.cpu_count()} cpus {torch.get_num_threads()} threads"
    cuda = f" cuda {torch.version.cuda}" if torch.version.cuda else ""
    return f"{hardware} torch {torch.__version__}{cuda} format {FORMAT}"


def _processor() -> str:
    """The model of the CPU, and what PyTorch uses of it: "AMD EPYC AVX512"."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


def _encoded(times: Times) -> str:
    plain = {
        name: asdict(timed) | {"work": asdict(timed.work) | {"dtype": str(timed.work.dtype)}}
        for name, timed in sorted(times.items())
    }
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in plain.items())
    return f"{{\n{rows}\n}}\n"


def _read(path: Path) -> dict[str, Timed]:
    """What a file holds; nothing if there is none.

    Raises:
        FileError: it is no table or cannot be read.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {name: _decoded(row) for name, row in rows.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(f"{path} is no table of measured times ({error!r}); delete it") from error


def _decoded(row: Any) -> Timed:
    """A row as it was, or whatever error shows that it is none."""
    work = dict(row["work"])
    dtype = getattr(torch, str(work.pop("dtype")).removeprefix("torch."))
    made = Timed(row["operator"], row["us"], Work(**work, dtype=dtype))
    sound = [
        isinstance(dtype, torch.dtype),
        type(made.operator) is str,
        type(made.us) is float and 0 < made.us < math.inf,
    ]
    for field in fields(Work):
        value = getattr(made.work, field.name)
        if field.name in _NUMBERS:
            sound += [type(value) in (int, float), math.isfinite(value), value >= 0]
        elif field.name != "dtype":
            sound.append(type(value) is bool)
    if row.keys() != {"operator", "us", "work"} or not all(sound):
        raise ValueError(f"{row} is no measured time")
    return made
