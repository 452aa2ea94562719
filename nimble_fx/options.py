"""The options of the backend, checked before any work is done."""

import inspect
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from nimble_fx.errors import OptionError
from nimble_fx.fallback import OnFallback
from nimble_fx.pipeline import Policy

Kernels = Literal["aten", "inductor", "auto"]
PolicyName = Literal["auto", "critical-path", "nimble", "serial"]

_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"freeze": True},
    "max-autotune": {"kernels": "auto"},
    "max-autotune-no-cudagraphs": {"kernels": "auto", "freeze": False},
}

_ARGUMENTS = {
    **dict.fromkeys(
        ("guards", "release_weights", "training"),
        "it is an argument of nimble_fx.compile, not an option; ",
    ),
    **dict.fromkeys(
        inspect.signature(torch.compile).parameters,
        "it is an argument of torch.compile, not an option; ",
    ),
    "mode": "it is an argument of torch.compile; the option kernels='auto' is its 'max-autotune'; ",
    "options": "it is an argument of torch.compile; here each option is a keyword; ",
}
"""Hints for arguments that users mistake for options."""


@dataclass(frozen=True)
class Options:
    """The options of `torch.compile(model, backend="nimble", options={...})`.

    Attributes:
        policy: "auto" for the fastest schedule, by simulation, and on a GPU by autotuning the best
            few; "nimble" for maximum concurrency with the fewest waits; "critical-path" for list
            scheduling by predicted cost; "serial" for one stream; or a pass of your own that
            assigns each launching task a stream; see `pipeline.Policy`.
        max_streams: the largest number of streams; None for as many as the device has.
        priorities: whether "auto" and "critical-path" may give a higher priority in the CUDA graph
            to the stream with most of the critical path. It then also precedes other work on the
            GPU.
        freeze: capture a CUDA graph if the program allows it.
        copy_outputs: copy outputs out of the graph's memory; False returns outputs that alias it,
            which the next call overwrites.
        max_graphs: how many CUDA graphs a program keeps for each set of parameters, one for each
            set of input sizes. The least recently used one is evicted when there are more.
        on_fallback: what to do when something runs slower than asked for: "warn" once, "error", or
            "silent"; `nimble_fx.fallbacks()` lists the fallbacks of programs that can still run.
        fold_weights: whether inference computes values that depend only on parameters and buffers
            once, instead of in each call. It computes them again at the next call after a parameter
            or buffer has changed.
            True on a CPU: also folds batch normalization into convolutions, runs convolutions and
            products with large matrices on packed weights (oneDNN), and merges products of few
            rows that share a matrix. Writes that PyTorch does not count (such as those through
            `.data`) are found by comparing values, of a large weight only a sample: a write to few
            elements may be missed.
            True on a GPU: also folds batch normalization into convolutions, which run in the
            channels-last format and apply relu themselves (cuDNN). Writes that PyTorch does not
            count are missed.
            "auto": True on a CPU if that is faster in the first call of the program; False on a
            GPU.
        assume_finite: whether library kernels that may replace NaN with a number are allowed:
            oneDNN's convolutions on folded weights that apply relu, hardtanh, hardsigmoid or gelu,
            and on a GPU cuBLAS's products that apply relu. PyTorch's activations keep NaN.
        kernels: "aten" for PyTorch's kernels; "inductor" for Inductor's fused kernels, each
            scheduled as a task (operators that Inductor cannot compile keep PyTorch's kernels);
            "auto" for whichever is faster in the first call of the program.
        verify: whether to prove each schedule legal before it runs; schedules of your own passes
            are always proved. "values": also compare the results of each program of inference,
            in its first call, with those of the graph that PyTorch traced.
        dump: a directory to write emitted modules to; None keeps them in memory.
        cache_dir: a directory of schedules that later compiles of the same program reuse.
        cost_dir: a directory of measured times of tasks, which "auto" and "critical-path" use as
            costs. Missing times are measured at compile time, by running each operator, including
            your custom ones, about fifty times on made-up values. None: a roofline predicts costs.
        device: "virtual" simulates an asynchronous GPU for a model on the CPU; None runs the model
            on its own device.
        seed: selects one of the orders in which the virtual device can run tasks that streams and
            events leave unordered; an error on any other device.
    """

    policy: PolicyName | Policy = "auto"
    max_streams: int | None = None
    priorities: bool = True
    freeze: bool = True
    copy_outputs: bool = True
    max_graphs: int = 8
    on_fallback: OnFallback = "warn"
    fold_weights: bool | Literal["auto"] = "auto"
    assume_finite: bool = False
    kernels: Kernels = "aten"
    verify: bool | Literal["values"] = True
    dump: str | os.PathLike[str] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cost_dir: str | os.PathLike[str] | None = None
    device: Literal["virtual"] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        policies = get_args(PolicyName)
        known = isinstance(self.policy, str) and self.policy in policies
        meant = _suggestion(self.policy, policies) if isinstance(self.policy, str) else ""
        if isinstance(self.policy, type):
            meant = f"it is a class, did you mean {self.policy.__name__}()? "
        expected = f"{_choices(policies)}, or a pass: a callable dataclass with a name"
        _require(known or _is_pass(self.policy), "policy", self.policy, expected, meant)
        streams = self.max_streams
        valid = streams is None or (type(streams) is int and streams >= 1)
        _require(valid, "max_streams", streams, "an int of at least 1, or None")
        for name in ("priorities", "freeze", "copy_outputs", "assume_finite"):
            require_bool(f"option {name}", getattr(self, name))
        graphs = self.max_graphs
        at_least_one = type(graphs) is int and graphs >= 1
        _require(at_least_one, "max_graphs", graphs, "an int of at least 1")
        choices = get_args(OnFallback)
        known = isinstance(self.on_fallback, str) and self.on_fallback in choices
        _require(known, "on_fallback", self.on_fallback, _choices(choices))
        folds = type(self.fold_weights) is bool or _is_text(self.fold_weights, "auto")
        _require(folds, "fold_weights", self.fold_weights, "True, False or 'auto'")
        choices = get_args(Kernels)
        known = isinstance(self.kernels, str) and self.kernels in choices
        _require(known, "kernels", self.kernels, _choices(choices))
        verified = type(self.verify) is bool or _is_text(self.verify, "values")
        _require(verified, "verify", self.verify, "True, False or 'values'")
        for name in ("dump", "cache_dir", "cost_dir"):
            path = getattr(self, name)
            problem = None if path is None else _make_directory(path)
            expected = f"None, or a directory to write to ({problem})"
            _require(problem is None, name, path, expected)

        virtual = _is_text(self.device, "virtual")
        expected = "'virtual', or None for where the model is (for a GPU that is not here there is "
        expected += "nimble_fx.plan)"
        _require(virtual or self.device is None, "device", self.device, expected)
        _require(type(self.seed) is int, "seed", self.seed, "an int")
        _require(
            virtual or self.seed == 0, "seed", self.seed, "an int, and only with device='virtual'"
        )

    @staticmethod
    def parse(
        mode: str | None, options: Mapping[str, Any] | None, keywords: Collection[str] = ()
    ) -> "Options":
        """The options that torch.compile hands to a backend.

        Args:
            mode, options: as for torch.compile.
            keywords: other arguments of the function that takes the options by keyword, which a
                misspelled option may mean.

        Raises:
            OptionError: an unknown mode or option, or a value that it cannot take.
        """
        if mode is not None and not (isinstance(mode, str) and mode in _MODES):
            raise OptionError(f"mode={mode!r} is not known; valid modes: {_choices(_MODES)}")
        if not isinstance(options, Mapping | None):
            raise OptionError(f"options={options!r:.99} is not valid; it takes a dict")
        known = {field.name for field in fields(Options)}
        unknown = sorted(set(map(str, options or {})) - known)
        if unknown:
            name, choices = unknown[0], _choices(known)
            meant = _ARGUMENTS.get(name) or _suggestion(name, {*known, *keywords})
            raise OptionError(f"unknown option {name!r}; {meant}valid options: {choices}")
        return replace(Options(), **{**_MODES[mode or "default"], **(options or {})})


def require_bool(name: str, value: object) -> None:
    """Checks an argument that is neither more nor less than a bool.

    Raises:
        OptionError: it is of another type.
    """
    if type(value) is not bool:
        raise OptionError(f"{name}={value!r:.99} is not valid; it takes True or False")


def _is_text(value: object, text: str) -> bool:
    """Whether a value, which may compare element by element, is a text."""
    return isinstance(value, str) and value == text


def _is_pass(policy: object) -> bool:
    named = isinstance(getattr(policy, "name", None), str)
    return named and callable(policy) and is_dataclass(policy) and not isinstance(policy, type)


def _require(valid: bool, name: str, value: object, expected: str, meant: str = "") -> None:
    if not valid:
        raise OptionError(f"option {name}={value!r} is not valid; {meant}it takes {expected}")


def _make_directory(path: object) -> str | None:
    """Makes a directory if it does not exist; returns why it cannot be written to, or None."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        return "it is not a path"
    try:
        directory = Path(path).expanduser()
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return "it is a file"
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        return f"it cannot be made: {error}"
    is_permitted = os.access(directory, os.W_OK | os.X_OK)
    return None if is_permitted else "there is no permission to write there"


def _suggestion(name: str, known: Collection[str]) -> str:
    """A "did you mean" question for the most similar known name; "" if none is similar."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _choices(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))
