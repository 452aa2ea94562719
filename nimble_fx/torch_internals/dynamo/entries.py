"""The entries of Dynamo's cache for a function, each with its guards and compiled code."""

import dis
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from nimble_fx.errors import UnsupportedError
from nimble_fx.torch_internals.dynamo.bookkeeping import (
    FOR_PROFILERS,
    FOR_USER_OBJECTS,
    READ_BESIDES,
    without_bookkeeping,
)
from nimble_fx.torch_internals.names import Missing, lookup

_eval_frame = lookup("torch._dynamo.eval_frame")
_frame_callback = lookup("torch._C._dynamo.eval_frame.get_eval_frame_callback")
_entries = lookup("torch._dynamo.eval_frame._debug_get_cache_entry_list")
_is_tracing = lookup("torch._C._is_tracing")
_n_dispatch_modes = lookup("torch._C._len_torch_dispatch_stack")
_n_function_modes = lookup("torch._C._len_torch_function_stack")
_function_modes = lookup("torch.overrides._get_current_function_mode_stack")
_DeviceContext = lookup("torch.utils._device.DeviceContext")
_transform = lookup("torch._C._functorch.peek_interpreter_stack")
_GlobalState = lookup("torch._C._dynamo.guards.GlobalStateGuard")

_NEEDED = (_eval_frame, _frame_callback, _entries, _is_tracing, _n_dispatch_modes)
_are_there = not any(isinstance(each, Missing) for each in _NEEDED)
"""Whether this PyTorch lets entries be called directly; if not, all calls go through Dynamo."""

_FETCHED = {"_modules", "_parameters", "_buffers"}
_OF_DYNAMIC_SIZES = {"call_size", "call_stride", "call_storage_offset"}
_SETTERS = {"object_setattr_ignore_descriptor", "object", "__setattr__"}
"""Functions that it calls with an object, the name of an attribute and a value."""
_INTERCEPTED = "a mode, a transform, a stance of the compiler or a trace"
_OF_STREAMS = "cuda"
"""The text that Dynamo's code for the current stream uses."""


@dataclass(frozen=True)
class DynamoEntry:
    """An entry of Dynamo's cache.

    Attributes:
        guards: check whether the code is valid for a call.
        code: the code that Dynamo runs instead of the function's code.
    """

    guards: Any
    code: CodeType

    @property
    def is_alive(self) -> bool:
        """Whether it is in the cache, and all objects that its guards refer to still exist."""
        return self.guards.cache_entry is not None

    @property
    def is_whole(self) -> bool:
        """Whether its code calls a graph, and no function that resumes after a graph break."""
        resumes = any(name.startswith("__resume_at_") for name in self.code.co_names)
        return bool(self.graph) and not resumes

    @property
    def graph(self) -> str:
        """The global name by which its code calls its first graph; "" if it has none."""
        names = (name for name in self.code.co_names if name.startswith("__compiled_fn_"))
        return next(names, "")

    @property
    def effects(self) -> list[str]:
        """The names of what its code may read or change besides calling one graph.

        If there are none, the code fetches arguments, parameters and buffers, calls the graph, and
        builds the return value from tuples, lists and dicts. Anything more would need a store
        instruction or another name.
        """
        names = self.code.co_names
        known = {self.graph, *_FETCHED, *FOR_PROFILERS, *FOR_USER_OBJECTS, *READ_BESIDES}
        found = [n for n in names if n not in known and not n.startswith("__import_")]
        if not _SETTERS.isdisjoint(found):
            found = [name for name in found if name not in _SETTERS]
            texts = [text for text in _texts_beside_keys(self.code) if text != _OF_STREAMS]
            found += texts or ["an attribute"]
        if not found and any(map(_is_store, dis.get_instructions(self.code))):
            found = ["an item of a list or dict"]
        return found

    @property
    def has_dynamic_sizes(self) -> bool:
        """Whether its graph takes sizes of inputs, as `mark_dynamic` makes it do."""
        return not _OF_DYNAMIC_SIZES.isdisjoint(self.code.co_names)

    @property
    def makes_objects(self) -> bool:
        """Whether its code makes an object of a class, such as a dataclass for the result."""
        return "__new__" in self.code.co_names

    def as_function(self, of: FunctionType, user_objects: bool) -> FunctionType:
        """The code as a function; without bookkeeping, if it has no effects.

        Args:
            of: the function that Dynamo compiled.
            user_objects: whether it must hand over the user's objects to its graph.
        """
        scope = of.__globals__
        if not self.effects:
            scope = without_bookkeeping(self.code, scope, user_objects)
        return FunctionType(self.code, scope, of.__name__, None, of.__closure__)

    def fits(self, variables: Mapping[str, object]) -> bool:
        """Whether the guards pass for a call.

        Args:
            variables: the function's arguments and free variables by name.
        """
        return self.guards.cache_entry is not None and self.guards.root.check(variables)


def latest_entry(code: CodeType) -> DynamoEntry | None:
    """The entry that the last call to a function used; None if there is none."""
    entries = _entries(code)
    return DynamoEntry(entries[0].guard_manager, entries[0].code) if entries else None


def _texts_beside_keys(code: CodeType) -> list[str]:
    """The strings that code uses for more than to select an item, such as a parameter, by name."""
    pairs = pairwise(dis.get_instructions(code))
    used = [one.argval for one, then in pairs if one.opname == "LOAD_CONST" and not _selects(then)]
    return list(dict.fromkeys(each for each in used if isinstance(each, str)))


def _selects(instruction: dis.Instruction) -> bool:
    """Whether an instruction selects an item, by its name up to Python 3.13 and from 3.14 on."""
    return instruction.opname == "BINARY_SUBSCR" or instruction.argrepr == "[]"


def _is_store(instruction: dis.Instruction) -> bool:
    """Whether an instruction changes an object or a variable that outlives the call."""
    name = instruction.opname
    return name.startswith(("STORE_", "DELETE_")) and "FAST" not in name


def is_evaluating_frames() -> bool:
    """Whether Dynamo would compile or look up the frames of functions that are called now."""
    return _frame_callback() is not None


def is_ordinary_call() -> bool:
    """Whether Dynamo would run compiled code, and no mode or tracer intercepts operators.

    Dynamo would not under `torch.compiler.set_stance`, nor when the caller is being compiled. Other
    threads may compile meanwhile, which `torch.compiler.is_compiling` would not tell apart.
    """
    return (
        not is_dynamo_compiling()  # first: Dynamo, when it traces this, stops here
        and _are_there
        and _eval_frame._stance.stance == "default"
        and _n_dispatch_modes() == 0
        and not _is_tracing()
    )


def _default_device() -> torch.device | None:
    """The device of `torch.set_default_device` or `with torch.device`; None if there is none."""
    if _n_function_modes() == 0:  # as a rule, and fast
        return None
    return next((m.device for m in _function_modes() if isinstance(m, _DeviceContext)), None)


class PytorchState:
    """The global state of PyTorch that changes what operators do, to compare with later calls."""

    def __init__(self) -> None:
        """Records the current state.

        Raises:
            UnsupportedError: a mode (other than a default device), stance, transform or trace is
                active; or this PyTorch lacks a name that comparisons need.
        """
        self._guard, self._inference = _GlobalState(), torch.is_inference_mode_enabled()
        self._default_device = _default_device()
        if not self.is_same():
            raise UnsupportedError(f"while {_INTERCEPTED} is active, only guards check a call")

    @property
    def difference(self) -> str:
        """How the current state differs from the recorded one."""
        if torch.is_inference_mode_enabled() is not self._inference:
            return "torch.inference_mode"
        if not self._guard.check():
            return str(self._guard.reason()).strip()
        if _default_device() != self._default_device:
            return "the default device"
        return _INTERCEPTED

    def is_same(self) -> bool:
        """Whether the state is unchanged, and no mode, stance, transform or trace is active.

        A default device is part of the state, although PyTorch sets it by a mode.
        """
        return (
            is_ordinary_call()
            and self._guard.check()
            and torch.is_inference_mode_enabled() is self._inference
            and _n_function_modes() == (self._default_device is not None)
            and _default_device() == self._default_device
            and _transform() is None
        )
