"""A file with wrong statements about folded weights is refused."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nimble_fx


@cache
def document() -> str:
    """The file of a program that takes folded weights."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU()).eval()
    (program,) = nimble_fx.compile(model, torch.randn(2, 3, 5, 5), fold_weights=True).programs
    assert program.scheduled.folded is not None
    return nimble_fx.serialization.encode(program.scheduled)


def first_task(document: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = document["folded"]["tasks"][0]
    return task


VIRTUAL = {"device": "virtual (seed 0)", "hardware": "virtual"}
EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "fewer results": lambda d: d["folded"]["outputs"].pop(),
    "results in another order": lambda d: d["folded"]["outputs"].reverse(),
    "no results": lambda d: d["folded"]["outputs"].clear(),
    "a result that is a number": lambda d: d["folded"]["outputs"].__setitem__(0, 1),
    "an input that is not static": lambda d: d["folded"]["inputs"][0].pop("static"),
    "weights that are not static": lambda d: d["inputs"][-1].pop("static"),
    "an unknown name": lambda d: first_task(d).__setitem__("args", [{"ref": "nobody"}, 1]),
    "a renamed task": lambda d: first_task(d).__setitem__("name", "other"),
    "another device": lambda d: d["folded"].update(VIRTUAL),
    "another main device": lambda d: d.update(VIRTUAL),
    "weights of folded weights": lambda d: d["folded"].__setitem__("folded", dict(d["folded"])),
    "a member too many": lambda d: d["folded"].__setitem__("more", 1),
    "a member too few": lambda d: d["folded"].pop("tasks"),
    "no program": lambda d: d.__setitem__("folded", [1]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_file_is_refused(edit: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    edited = json.loads(document())
    edit(edited)
    path = tmp_path / "program.json"
    path.write_text(json.dumps(edited))
    with pytest.raises(nimble_fx.FileError):
        nimble_fx.load(path)


def test_the_file_as_it_is_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "program.json").write_text(document())
    assert nimble_fx.load(tmp_path / "program.json").scheduled.folded is not None
