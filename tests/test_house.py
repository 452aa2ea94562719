"""Rules of the house that no linter knows."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nimble_fx

PACKAGE = Path(nimble_fx.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py")) + sorted((PACKAGE / "passes").glob("*.py"))


def names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_the_compiler_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, nimble_fx; assert 'torch._dynamo' not in sys.modules;"
        "assert all(hasattr(nimble_fx, name) for name in nimble_fx.__all__);"
        "assert not hasattr(nimble_fx, 'nonsense'); assert 'torch._dynamo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_cuda_device_touches_torch_cuda(path: Path) -> None:
    touches = any(name.startswith("torch.cuda") for name in names(path))
    assert touches == (path.name == "cuda.py")
