"""Rules of the house that no linter knows."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import nimble_fx
from nimble_fx.options import Options
from tests.support.models import Branchy

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


def test_the_module_that_the_readme_shows_is_the_one_that_is_emitted() -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options={"policy": "nimble"})(torch.randn(2, 4))
    call = nimble_fx.programs()[0].source.split("\n\n\n")[1]
    assert call in (PACKAGE.parent / "README.md").read_text()


def test_the_error_that_the_readme_shows_is_the_one_that_is_raised() -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options={"policy": "nimble"})(torch.randn(2, 4))
    text = nimble_fx.programs()[0].source.replace("        s0.wait_event(e.sigmoid)\n", "")
    with pytest.raises(nimble_fx.ScheduleError) as caught:
        nimble_fx.verify_source(text)
    assert f"```\n{caught.value}\n```" in (PACKAGE.parent / "README.md").read_text()


def test_the_example_of_saving_that_the_readme_has_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (PACKAGE.parent / "README.md").read_text().split("## Save and load")[1]
    monkeypatch.chdir(tmp_path)
    exec(compile(section.split("```python\n")[1].split("```")[0], "README.md", "exec"), {})
    assert (tmp_path / "model.json").exists()


def test_the_options_that_the_readme_lists_are_those_that_there_are() -> None:
    readme = (PACKAGE.parent / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", readme, re.MULTILINE)
    assert rows == [(f.name, repr(f.default).replace("'", '"')) for f in fields(Options)]


def test_each_pass_is_listed_in_the_readme_of_the_passes() -> None:
    passes = [p.stem for p in (PACKAGE / "passes").glob("*.py") if p.stem != "__init__"]
    readme = (PACKAGE / "passes" / "README.md").read_text()
    assert passes
    assert [name for name in passes if f"`{name}.py`" not in readme] == []
