"""The options that all commands have, their targets, and results as JSON."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.command_line.console import say
from nimble_fx import __version__
from nimble_fx.serialization.atomic_write import write_atomically

RESULTS = Path("bench/results")
_CODE = ("../nimble_fx", "../passes", "*.py")
"""The checkout that figures are from."""


@dataclass(frozen=True)
class Target:
    """An upper limit for a figure.

    Attributes:
        name: the measured quantity, with its unit.
        figure: the measured value.
        limit: the largest allowed value.
        strict: whether the limit itself is too large.
    """

    name: str
    figure: float
    limit: float
    strict: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within the limit."""
        return self.figure < self.limit if self.strict else self.figure <= self.limit

    def __str__(self) -> str:
        sign, verdict = "<" if self.strict else "<=", "met" if self.met else "NOT met"
        return f"{self.name}: {self.figure:.3f}, target {sign} {self.limit:g}: {verdict}"


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command's parser, with the options that all commands have."""
    spec = sys.modules["__main__"].__spec__
    made = argparse.ArgumentParser(
        prog=f"python -m {spec.name}" if spec else None,
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.add_argument("--out", type=Path, default=RESULTS, help="directory of results by device")
    made.add_argument("--no-write", action="store_true", help="print only, write no JSON")
    return made


def print_targets(targets: Iterable[Target]) -> None:
    """One line a target: the figure, the limit, and "met" or "NOT met"."""
    for target in targets:
        say(str(target), good=target.met)


def finish(
    name: str,
    args: argparse.Namespace,
    results: Mapping[str, object],
    targets: Sequence[Target] = (),
    stem: str | None = None,
) -> None:
    """Prints the targets; unless `--no-write` is on, writes the results and prints the path.

    Args: as for `keep`.
    """
    print_targets(targets)
    path = keep(name, args, results, targets, stem)
    if path is not None:
        say(f"written to {path}")


def keep(
    name: str,
    args: argparse.Namespace,
    results: Mapping[str, object],
    targets: Sequence[Target] = (),
    stem: str | None = None,
) -> Path | None:
    """Writes the results and their environment, unless `--no-write` is on; returns the file.

    Args:
        name: the command's name, such as "inference".
        args: the arguments, from a parser that `parser` made.
        results: the measurements, as dataclasses, lists, dicts, numbers and strings.
        targets: the command's targets.
        stem: the file is OUT/DEVICE/STEM.json; `name` if None.
    """
    if args.no_write:
        return None
    chosen = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}
    chosen.pop("no_write")
    document = {
        "command": name,
        "options": chosen,
        "environment": environment(),
        "targets": [{**asdict(target), "met": target.met} for target in targets],
        "results": results,
    }
    device = torch.device(chosen.get("device") or default_device())
    return write_json(args.out / device_directory(device), stem or name, document)


def default_device() -> torch.device:
    """The first CUDA device if there is one, else the CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def device_directory(device: torch.device) -> str:
    """The directory of a device's results: "cpu", "nvidia-h200"."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def environment() -> dict[str, Any]:
    """The environment that figures depend on, without paths and names of machines."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--", *_CODE)),
        "nimble_fx": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "n_cpus": os.cpu_count(),
        "n_torch_threads": torch.get_num_threads(),
        "gpus": gpus,
        "load_average": os.getloadavg()[0],
    }


def write_json(directory: Path, name: str, document: Mapping[str, object]) -> Path:
    """Writes `directory/NAME.json` atomically, with a newline at its end; returns its path."""
    text = json.dumps(plain(document), indent=1, allow_nan=False)
    # `bench.evidence` kills what takes too long.
    return write_atomically(directory, f"{name}.json", text + "\n")


def plain(value: object) -> object:
    """Converts dataclasses to dicts, and rounds floats to six digits, for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _git(*arguments: str) -> str | None:
    """Git's output, without changes to the checkout; None if there is no git or checkout."""
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
