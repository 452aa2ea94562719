"""Each command that no other test runs succeeds, and writes results that the report can read."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench import compile_time, kernels, lifetime, memory, overhead
from bench.report import page, read

pytestmark = pytest.mark.slow

Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("name", "main", "options"),
    [
        ("overhead", overhead.main, ["--calls", "20", "--rounds", "2"]),
        ("lifetime", lifetime.main, ["--lives", "4"]),
        ("memory", memory.main, ["--models", "two_tower"]),
        ("kernels", kernels.main, ["--models", "two_tower", "--ways", "folded", "finite"]),
        (
            "compile_time",
            compile_time.main,
            [
                "--models",
                "two_tower",
                "--tasks",
                "100",
                "200",
                "--rounds",
                "1",
                "--first-calls",
                "1",
            ],
        ),
    ],
)
def test_a_command_leaves_results_that_are_shown(
    name: str, main: Main, options: list[str], tmp_path: Path
) -> None:
    assert main([*options, "--out", str(tmp_path)]) == 0
    documents = read(tmp_path)
    (kept,) = documents.values()
    assert kept[name]["results"]
    assert f"`python -m bench.{name} " in page(documents)


def test_commands_find_the_backend_in_a_checkout_that_is_not_installed() -> None:
    code = (
        "import importlib.metadata as metadata\n"
        "metadata.entry_points = lambda **_: metadata.EntryPoints()\n"
        "import bench, torch\n"
        "print(torch._dynamo.lookup_backend('nimble').__module__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "nimble_fx.backend"
