"""The backend is found by name, even if many threads look it up first."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nimble_fx.backend import nimble
from nimble_fx.torch_internals.dynamo import names

ROOT = Path(__file__).parents[2]

FIRST_COMPILES = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import torch

together = Barrier(6)

def compiled(f, x, ahead):
    if ahead:
        import nimble_fx
        return nimble_fx.compile(f, x)
    return torch.compile(f, backend="nimble")

def first_compile(ahead):
    f, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), torch.randn(2, 3)
    together.wait()
    with torch.no_grad():
        torch.testing.assert_close(compiled(f, x, ahead)(x), f(x))

with ThreadPoolExecutor(6) as pool:
    list(pool.map(first_compile, [kind == "ahead" for kind in sys.argv[1:]]))

import nimble_fx
from nimble_fx.frontend import register_backend
assert register_backend.entry_point is None, "PyTorch registers the backend by itself"
assert "nimble" in torch._dynamo.list_backends()
assert len(nimble_fx.programs()) >= 1
torch.compiler.reset()
assert nimble_fx.programs() == ()
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which this checkout is installed, with its entry point."""
    (entry,) = re.findall(r'"torch_dynamo_backends": \["(.+)"\]', (ROOT / "setup.py").read_text())
    metadata = tmp_path / "nimble_fx-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nimble-fx\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{entry}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 3], ids=["by name", "by name and by nimble_fx.compile"])
def test_the_first_compiles_of_a_process_may_be_in_several_threads(
    ahead: int, installed: dict[str, str]
) -> None:
    kinds = ["ahead", "by name"] * ahead + ["by name"] * (6 - 2 * ahead)
    subprocess.run([sys.executable, "-c", FIRST_COMPILES, *kinds], check=True, env=installed)


@pytest.mark.parametrize("what_pytorch_says", [KeyError, TypeError, AssertionError])
def test_a_pytorch_that_takes_no_none_is_handed_the_backend(
    what_pytorch_says: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[str] = []

    def lookup(name: str) -> None:
        raise what_pytorch_says

    monkeypatch.setattr(names, "lookup_backend", lookup)
    monkeypatch.setattr(names, "register_backend", lambda _, name: registered.append(name))
    loaded: dict[str, Any] = runpy.run_module("nimble_fx.frontend.register_backend")
    takes_none = what_pytorch_says is KeyError
    assert loaded["entry_point"] is (None if takes_none else nimble)
    assert registered == ["nimble"] * takes_none
