"""Rules of the project that no linter checks."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import nimble_fx
from tests.conftest import NEEDS

PACKAGE = Path(nimble_fx.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py")) + sorted((PACKAGE / "passes").glob("*.py"))


def names(path: Path) -> set[str]:
    """The dotted names that a file has in its code and imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imported(path: Path) -> set[str]:
    """The first parts of the modules that a file imports."""
    return imported_by(ast.walk(ast.parse(path.read_text())))


def imported_by(nodes: Iterable[ast.AST]) -> set[str]:
    """The first parts of the modules that statements import."""
    found = set()
    for node in nodes:
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


WITH_PYTORCH = {"functorch", "networkx", "sympy", "torch"}
ALWAYS_THERE = {"hypothesis", "pytest", *WITH_PYTORCH, *sys.stdlib_module_names}
OURS = {"nimble_fx", "tests"}


def test_tests_are_skipped_and_not_broken_where_there_is_nothing_but_pytorch_and_pytest() -> None:
    """`bench.evidence` runs them on a machine for which nobody has prepared anything."""
    tests = PACKAGE.parent / "tests"
    elsewhere = [tests / "bench", tests / "cuda_runtime"]
    for path in tests.rglob("*.py"):
        if not any(map(path.is_relative_to, elsewhere)) and path.name.startswith("test_"):
            known = {NEEDS.get(str(path.relative_to(tests)), "")}
            assert imported_at_once(path) - ALWAYS_THERE - OURS - known == set(), path
    assert [file for file in NEEDS if not (tests / file).exists()] == []


def test_no_test_imports_the_sanitizer_of_pytorch_for_the_whole_process() -> None:
    """See `tests.support.sanitizer.event_handler`."""
    for path in (PACKAGE.parent / "tests").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        assert "torch.cuda._sanitizer" not in {getattr(node, "module", None) for node in nodes}
        aliases = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
        assert "torch.cuda._sanitizer" not in aliases, path


def imported_at_once(path: Path) -> set[str]:
    """The first parts of the modules that a file imports when it is imported itself."""
    return imported_by(ast.parse(path.read_text()).body)


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


def test_no_python_file_or_function_is_too_long_to_be_read() -> None:
    folders = ("nimble_fx", "passes", "tests", "bench", "examples")
    for path in (p for folder in folders for p in (PACKAGE.parent / folder).rglob("*.py")):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                assert node.end_lineno - node.lineno < 60, (path, node.name)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_cuda_device_touches_torch_cuda(path: Path) -> None:
    touches = any(name.startswith("torch.cuda") for name in names(path))
    assert touches == (path.name == "cuda.py")


FACTORIES = {
    *("arange", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randint"),
    *("randn", "randperm", "tensor", "zeros"),
}


def test_new_tensors_are_on_a_named_device() -> None:
    """Else they would be on the device of the user's `torch.set_default_device`."""
    for path in SOURCES:
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        made = [n for n in calls if ast.unparse(n.func) in {f"torch.{name}" for name in FACTORIES}]
        unnamed = [n for n in made if "device" not in {keyword.arg for keyword in n.keywords}]
        assert [(path.name, n.lineno) for n in unnamed] == []
