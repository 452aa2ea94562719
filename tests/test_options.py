"""Every invalid option is an error that lists the valid ones."""

import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import nimble_fx
from nimble_fx.errors import OptionError
from nimble_fx.options import Options
from nimble_fx.passes.assign_streams import AssignStreams


def test_defaults() -> None:
    assert Options.parse(None, None) == Options.parse("default", {}) == Options()


def test_options_override_what_the_mode_says() -> None:
    assert Options.parse("max-autotune", None).kernels == "auto"
    assert not Options.parse("max-autotune-no-cudagraphs", None).freeze
    assert Options.parse("max-autotune-no-cudagraphs", {"freeze": True}).freeze


def test_an_unknown_option_lists_all_of_them() -> None:
    names = ", ".join(sorted(repr(field.name) for field in fields(Options)))
    with pytest.raises(OptionError) as caught:
        Options.parse(None, {"fastest": True})
    assert str(caught.value) == f"unknown option 'fastest'; valid options: {names}"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("polcy", "policy"), ("max_stream", "max_streams"), ("n_streams", "max_streams")],
)
def test_an_unknown_option_that_is_like_a_valid_one_asks_for_it(typed: str, meant: str) -> None:
    message = rf"unknown option '{typed}'; did you mean '{meant}'\? valid options: '"
    with pytest.raises(OptionError, match=message):
        Options.parse(None, {typed: 1})


@pytest.mark.parametrize("name", ["guards", "release_weights", "training"])
def test_an_argument_of_compile_is_no_option(name: str) -> None:
    assert name in inspect.signature(nimble_fx.compile).parameters
    with pytest.raises(OptionError, match=f"'{name}'; it is an argument of nimble_fx.compile"):
        Options.parse(None, {name: True})


@pytest.mark.parametrize("name", inspect.signature(torch.compile).parameters)
def test_an_argument_of_torch_compile_is_no_option(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}'; it is an argument of torch.compile"):
        Options.parse(None, {name: None})


def test_so_does_a_policy() -> None:
    with pytest.raises(OptionError, match=r"policy='nimbel' is not valid; did you mean 'nimble'\?"):
        Options.parse(None, {"policy": "nimbel"})


def test_a_class_for_a_policy_asks_for_an_instance() -> None:
    with pytest.raises(OptionError, match=r"it is a class, did you mean AssignStreams\(\)\?"):
        Options.parse(None, {"policy": AssignStreams})


def test_a_device_that_is_not_here_is_for_a_plan() -> None:
    with pytest.raises(OptionError, match=r"device='h100' is not valid.*nimble_fx\.plan"):
        Options.parse(None, {"device": "h100"})


@pytest.mark.parametrize("options", [["policy"], "policy", 3])
def test_options_are_a_dict(options: Any) -> None:
    with pytest.raises(OptionError, match="it takes a dict"):
        Options.parse(None, options)


def test_an_unknown_mode_lists_all_of_them() -> None:
    with pytest.raises(OptionError, match=r"'fast'.*'default', .*'reduce-overhead'"):
        Options.parse("fast", None)


class Elementwise:
    """Compares as an array does."""

    def __eq__(self, other: object) -> Any:
        return Elementwise()

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(field.name, Elementwise()) for field in fields(Options)],
        ("policy", "fastest"),
        ("policy", None),
        ("policy", ["nimble"]),
        ("policy", lambda graph: graph),
        ("policy", AssignStreams),
        ("max_streams", 0),
        ("max_streams", True),
        ("max_streams", 2.0),
        ("freeze", "yes"),
        ("freeze", 1),
        ("verify", None),
        ("dump", 3),
        ("dump", __file__),
        ("dump", __file__ + "/below"),
        ("dump", ""),
        ("dump", "a\0b"),
        ("dump", b"bytes\0"),
        ("cache_dir", 3),
        ("cache_dir", __file__),
        ("device", "cuda"),
        ("device", ["virtual"]),
        ("seed", 1),
        ("seed", "7"),
        ("seed", True),
    ],
)
def test_a_bad_value_is_named_with_what_the_option_takes(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"option {name}=.*it takes"):
        Options.parse(None, {name: value})


def test_paths_are_taken_as_str_or_path(tmp_path: Path) -> None:
    assert Options.parse(None, {"dump": tmp_path}).dump == tmp_path
    assert Options.parse(None, {"dump": str(tmp_path / "new")}).dump == str(tmp_path / "new")


@pytest.mark.parametrize("needed", [os.W_OK, os.X_OK])
def test_a_directory_needs_all_permissions_that_a_file_in_it_needs(
    needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the system says: the tests may run as root, whom it refuses nothing."""
    monkeypatch.setattr("os.access", lambda path, mode: not mode & needed)
    with pytest.raises(OptionError, match="there is no permission to write there"):
        Options.parse(None, {"cache_dir": tmp_path})
