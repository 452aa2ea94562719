"""PyTorch's private names exist; a missing one is an error that says so, and a fallback."""

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import nimble_fx
from nimble_fx.errors import NimbleWarning, UnsupportedError
from nimble_fx.torch_internals import fake_tensors, names, storages
from nimble_fx.torch_internals.dynamo import caches as dynamo_caches
from nimble_fx.torch_internals.dynamo import names as dynamo_names
from nimble_fx.torch_internals.names import Missing, lookup
from nimble_fx.tracing import aten_to_tasks
from tests.support.models import Branchy
from tests.support.replaying import ReplayingDevice

PACKAGE = Path(nimble_fx.__file__).parent
OUTSIDE = [
    path
    for path in (*PACKAGE.rglob("*.py"), *(PACKAGE / "passes").glob("*.py"))
    if "torch_internals" not in path.relative_to(PACKAGE).parts
]
ONLY_FOR_CUDA = {
    "torch._C._cuda_clearCublasWorkspaces",
    "torch._C._cuda_endAllocateToPool",
    "torch._C._cuda_getCurrentRawStream",
    "torch._C._cuda_getDevice",
}
"""PyTorch's builds for the CPU lack these."""


def looked_up() -> list[str]:
    """The literal paths of all calls of `lookup`, wherever they are."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        found += re.findall(r'"(torch\._?[\w.]+)"', path.read_text())
    return sorted(name for name in set(found) - ONLY_FOR_CUDA if is_private(name))


NEW_IN = {"torch._foreach_clone": "2.13"}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def private_names(path: Path) -> list[str]:
    """Names of torch's, in imports and attributes, of which a part begins with an underscore."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    ours = re.compile(r"torch\.(?!ops\.)[\w.]+$|[\w.]+\._(cdata|schema|overloadname)$")
    return [name for name in found if ours.match(name) and is_private(name)]


@pytest.mark.parametrize("path", looked_up())
def test_each_name_is_there(path: str) -> None:
    if torch.__version__ < NEW_IN.get(path, ""):
        pytest.skip(f"new in PyTorch {NEW_IN[path]}; what replaces it before has a test")
    assert not isinstance(lookup(path), Missing)


def test_the_types_are_there() -> None:
    assert all(hasattr(names, name) for name in names.__all__)
    assert all(hasattr(dynamo_names, name) for name in dynamo_names.__all__)
    assert isinstance(torch.zeros(1).untyped_storage()._cdata, int)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_module_uses_private_names(path: Path) -> None:
    assert private_names(path) == []


def test_a_name_that_is_not_there_says_so_when_it_is_used() -> None:
    missing = lookup("torch._C._no_such_function")
    with pytest.raises(UnsupportedError, match=r"has no torch\._C\._no_such_function, which"):
        missing(1)
    with pytest.raises(UnsupportedError, match=r"has no torch\._no_such_module\.name"):
        lookup("torch._no_such_module.name").attribute  # noqa: B018  # raises


def test_a_value_that_is_none_or_empty_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[object] = [None, {}, 0]
    for value in values:
        monkeypatch.setattr(torch, "_nimble_test", value, raising=False)
        assert lookup("torch._nimble_test") is value


def test_without_a_name_for_tracing_the_model_runs_as_traced_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Missing("torch._C._dispatch_has_kernel_for_dispatch_key")
    monkeypatch.setattr("nimble_fx.torch_internals.operators.has_kernel_for_dispatch_key", missing)
    aten_to_tasks._returns_arguments.cache_clear()  # earlier tests may have traced this model
    model, x = Branchy(), torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(NimbleWarning, match=missing.path):
        assert torch.equal(torch.compile(model, backend="nimble")(x), model(x))
    assert [fallback.runs for fallback in nimble_fx.fallbacks()] == [
        "as traced, without a schedule"
    ]


def test_without_a_name_for_captures_the_model_runs_unfrozen_and_says_why(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Missing("torch._C._storage_Use_Count")
    monkeypatch.setattr(storages, "storage_use_count", missing)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 1))
    x = torch.randn(2, 4)
    with pytest.warns(NimbleWarning, match=missing.path):
        loss = torch.compile(model, backend="nimble")(x).sum()
    loss.backward()
    assert torch.equal(loss, model(x).sum())
    assert {fallback.runs for fallback in nimble_fx.fallbacks()} == {"unfrozen"}


def test_the_modules_beside_it_look_their_names_up() -> None:
    assert not isinstance(fake_tensors._dispatch_mode, Missing)
    assert {dynamo_caches.BACKENDS, dynamo_caches.SIZES, dynamo_caches.RESET_CODE} <= {*looked_up()}
