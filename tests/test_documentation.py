"""README and docs are true: code runs, outputs match, names, files and links exist."""

import importlib
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import nimble_fx
from nimble_fx.devices.specs import GPUS
from nimble_fx.options import Options
from nimble_fx.rewrites.folding.pack_matrices import MAX_NBYTES, MIN_ELEMENTS
from nimble_fx.runtime.capture.graph_cache import BREAK_EVEN_CALLS, MAX_PARAMETER_SETS
from nimble_fx.runtime.folding.folded_weights import MAX_SETS
from nimble_fx.selection.candidate import MIN_GAIN
from nimble_fx.tracing.constant_folding import MAX_BYTES
from tests.support.markdown import PAGES, ROOT, Block, Page

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MARKS = {"gpu", "output"}
GUIDE = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which speaks of the past too
FOLDERS = r"(?:nimble_fx|passes|tests|bench|docs|examples)/"


def named(page: Page) -> str:
    return page.name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, from which modules can be imported while the test runs."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def runs_here(block: Block) -> bool:
    """Whether this machine has what a block needs."""
    package = block.mark("needs")
    return ("gpu" not in block.marks or torch.cuda.is_available()) and (
        package is None or find_spec(package) is not None
    )


def write(block: Block, directory: Path) -> None:
    """Writes a block that is a file of the reader's."""
    path = directory / (block.mark("file") or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


def run(block: Block, page: Page, namespace: ModuleType) -> None:
    """Executes a block; errors name the line of the page."""
    lines = "\n" * (block.line - 1)
    exec(compile(lines + block.text, str(page.path), "exec"), vars(namespace))


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks], ids=named)
def test_the_code_of_a_page_runs_from_top_to_bottom_and_prints_what_the_page_shows(
    page: Page,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch._dynamo.utils.counters.clear()  # of the tests before
    namespace, printed = ModuleType("page"), ""
    monkeypatch.setitem(sys.modules, "page", namespace)  # where Dynamo looks for classes
    for block in page.blocks:
        if "output" in block.marks:
            printed += capsys.readouterr().out
            assert block.text in printed, f"{page.name}:{block.line}"
        elif block.mark("file"):
            write(block, place)
        elif block.language == "python" and runs_here(block):
            run(block, page, namespace)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_block_says_what_it_is(page: Page) -> None:
    """So that none is left out for a mark that was mistyped."""
    for block in page.blocks:
        assert block.language in {"python", "sh", "text", "diff", "mermaid"}, block
        assert all(mark in MARKS or re.match(r"(file|needs)=\w", mark) for mark in block.marks), (
            block
        )
        assert block.language != "text" or "output" in block.marks, "text that nobody checks"


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for block in page.blocks:
            if block.language == "sh":
                for line in block.text.splitlines():
                    yield page.name, shlex.split(line, comments=True)


@pytest.mark.parametrize(("page", "words"), list(command_lines()), ids=lambda value: str(value))
def test_each_command_exists(
    page: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    match [word.removeprefix(".venv/bin/") for word in words]:
        case ["make", target, *variables]:
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
            assert all(f"$({name.partition('=')[0]})" in MAKEFILE for name in variables)
        case ["python", "-m", "pytest", *arguments] | ["pytest", *arguments]:
            check_pytest(arguments)
        case ["python", "-m", module, *arguments]:
            check_options(module, arguments, capsys, monkeypatch)
        case ["python", script, *_]:
            assert (ROOT / script).is_file()
        case ["pre-commit", "install"]:
            assert (ROOT / ".pre-commit-config.yaml").is_file()
        case ["pip", "install", "-e", _]:
            assert (ROOT / "setup.py").is_file()
        case _:
            pytest.fail(f"{page}: it is not known how to check {words}")


def check_pytest(arguments: list[str]) -> None:
    """Paths exist, markers are known."""
    markers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for before, word in zip(["", *arguments], arguments, strict=False):
        assert before != "-m" or f'"{word}:' in markers
        known = word.startswith("-") or before == "-m" or (ROOT / word).exists() or is_new(word)
        assert known, word


def is_new(path: str) -> bool:
    """Whether it is a file that a page has the reader write."""
    return any(block.mark("file") == path for page in PAGES for block in page.blocks)


def check_options(
    module: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The module is there, and its help has the options."""
    spec = find_spec(f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module)
    assert spec is not None, module
    asked = [word for word in arguments if word.startswith("-")]
    if asked:
        main = importlib.import_module(spec.name).main
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit):
            main()
        shown = capsys.readouterr().out
        assert [option for option in asked if option not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_link_leads_somewhere(page: Page) -> None:
    for link in page.links:
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file).resolve() if file else page.path
        assert target.exists(), link
        assert not anchor or anchor in Page(target).anchors, link


@pytest.mark.parametrize("page", GUIDE, ids=named)
def test_each_file_that_is_named_exists(page: Page) -> None:
    files = [span for span in page.code_spans if re.fullmatch(rf"{FOLDERS}[\w/.]*", span)]
    assert [file for file in files if not (ROOT / file).exists() and not is_new(file)] == []


@pytest.mark.parametrize("page", GUIDE, ids=named)
def test_each_name_of_the_package_that_is_mentioned_exists(page: Page) -> None:
    for span in page.code_spans:
        for name in re.findall(r"\bnimble_fx((?:\.\w+)+)", span):
            assert resolves(name), span


def resolves(name: str) -> bool:
    """Whether `nimble_fx` and a dotted name is a module or something in one."""
    *parents, last = f"nimble_fx{name}".split(".")
    for i in range(len(parents), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parents[:i]))
            for part in parents[i:]:
                found = getattr(found, part)
        except (ImportError, AttributeError):
            continue
        return hasattr(found, last) or find_spec(f"{'.'.join(parents)}.{last}") is not None
    return False


def test_each_public_name_is_documented() -> None:
    spans = " ".join(span for page in GUIDE for span in page.code_spans)
    blocks = " ".join(block.text for page in GUIDE for block in page.blocks)
    words = set(re.findall(r"\w+", f"{spans} {blocks}"))
    assert set(nimble_fx.__all__) - words == set()


def test_the_options_that_the_page_lists_are_those_that_there_are() -> None:
    (page,) = (page for page in PAGES if page.name == "docs/options.md")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page.text, re.MULTILINE)
    assert rows == [(f.name, repr(f.default).replace("'", '"')) for f in fields(Options)]


def test_each_gpu_that_has_a_name_is_listed() -> None:
    text = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    assert [name for name in GPUS if f"`{name}`" not in text] == []


def test_the_hooks_before_a_commit_run_what_make_check_runs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    tools = re.findall(r"entry: \.venv/bin/([\w-]+)", hooks)
    assert set(tools) == {"ruff", "mypy", "lint-imports"}
    assert all(f"$(BIN)/{tool}" in MAKEFILE for tool in tools)


def test_each_pass_is_listed() -> None:
    text = (ROOT / "passes" / "README.md").read_text(encoding="utf-8")
    passes = [path.name for path in (ROOT / "passes").glob("*.py") if path.stem != "__init__"]
    assert passes
    assert [file for file in passes if f"`{file}`" not in text] == []


def test_each_package_is_in_the_architecture() -> None:
    (page,) = (page for page in PAGES if page.name == "docs/architecture.md")
    packages = {path.parent.name for path in (ROOT / "nimble_fx").glob("*/__init__.py")}
    listed = set(re.findall(r"^\| `(\w+)/` ", page.text, re.MULTILINE))
    assert packages <= listed | {"passes"}


@pytest.mark.slow
def test_following_the_page_on_passes_makes_a_pass_that_its_test_accepts(tmp_path: Path) -> None:
    """Each file and change of the page, in a copy of the project."""
    copy = tmp_path / "project"
    kept = shutil.ignore_patterns(".*", "__pycache__", "build", "results")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=kept)
    (page,) = (page for page in PAGES if page.name == "docs/writing_a_pass.md")
    for block in page.blocks:
        if block.mark("file"):
            write(block, copy)
        elif block.language == "diff":
            subprocess.run(["git", "apply", "-"], cwd=copy, input=block.text, text=True, check=True)
    listed = f"tests/{Path(__file__).name}::{test_each_pass_is_listed.__name__}"
    arguments = ["tests/passes/test_number_streams.py", listed, "-p", "no:cacheprovider"]
    subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=copy, check=True)


def test_the_front_page_is_one_page() -> None:
    (page,) = (page for page in PAGES if page.name == "README.md")
    assert len(re.findall(r"\S*[a-zA-Z]\S*", page.prose)) <= 950
    assert {page.name for page in PAGES if page.name.startswith("docs/")} <= set(page.links)


NUMBERS: list[tuple[str, str, float]] = [
    ("README.md", r"at least\s+(\d+)% faster than one", 100 * MIN_GAIN),
    ("docs/policies.md", r"at least (\d+)% faster than one", 100 * MIN_GAIN),
    ("docs/cuda_graphs.md", r"pays off after about (\d+) replays", BREAK_EVEN_CALLS),
    ("docs/cuda_graphs.md", r"until they have occurred (\d+) times", BREAK_EVEN_CALLS),
    ("docs/cuda_graphs.md", r"graphs of its own \(up to (\d+) sets\)", MAX_PARAMETER_SETS),
    ("docs/cuda_graphs.md", r"if they are at most (\d+) MiB and neither", MAX_BYTES / 2**20),
    ("docs/options.md", r"folded weights of their own \(up to ([\d,]+) sets\)", MAX_SETS),
    (
        "docs/options.md",
        r"float32 matrix of 2\^(\d+) elements or more become",
        math.log2(MIN_ELEMENTS),
    ),
    ("docs/options.md", r"The copies take at most (\d+) GiB", MAX_NBYTES / 2**30),
]


@pytest.mark.parametrize(("name", "sentence", "number"), NUMBERS)
def test_numbers_are_the_codes(name: str, sentence: str, number: float) -> None:
    (page,) = (page for page in PAGES if page.name == name)
    (found,) = set(re.findall(sentence, page.text))
    assert float(found.replace(",", "")) == number
