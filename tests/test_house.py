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


def imported(path: Path) -> set[str]:
    """The first parts of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_bench_imports_no_tests_and_only_its_own_tests_import_bench() -> None:
    bench, tests = PACKAGE.parent / "bench", PACKAGE.parent / "tests"
    of_others = [p for p in tests.rglob("*.py") if not p.is_relative_to(tests / "bench")]
    assert [str(p) for p in bench.rglob("*.py") if "tests" in imported(p)] == []
    assert [str(p) for p in of_others if "bench" in imported(p)] == []
    assert any("bench" in imported(p) for p in (tests / "bench").rglob("*.py"))


@pytest.mark.slow
def test_the_compiler_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, nimble_fx; assert 'torch._dynamo' not in sys.modules;"
        "assert all(hasattr(nimble_fx, name) for name in nimble_fx.__all__);"
        "assert not hasattr(nimble_fx, 'nonsense'); assert 'torch._dynamo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_file_of_the_cuda_runtime_is_too_long_to_be_read() -> None:
    sources = sorted((PACKAGE.parent / "tests/cuda_runtime/native").rglob("*.*"))
    assert {path.suffix for path in sources} == {".cpp", ".h", ".map"}
    assert [str(path) for path in sources if len(path.read_text().splitlines()) > 400] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_cuda_device_touches_torch_cuda(path: Path) -> None:
    touches = any(name.startswith("torch.cuda") for name in names(path))
    assert touches == (path.name == "cuda.py")
