"""What Dynamo has compiled for a function: the guards of an entry of its cache, and the code."""

import dis
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from nimble_fx.torch_internals.names import lookup

_eval_frame = lookup("torch._dynamo.eval_frame")
_entries = lookup("torch._dynamo.eval_frame._debug_get_cache_entry_list")
_is_tracing = lookup("torch._C._is_tracing")
_n_dispatch_modes = lookup("torch._C._len_torch_dispatch_stack")
_GlobalState = lookup("torch._C._dynamo.guards.GlobalStateGuard")

_FETCHED = {"_modules", "_parameters", "_buffers"}
_BOOKKEEPING = {
    "record_pregraph_bytecode_enter",
    "record_pregraph_bytecode_exit",
    "store_user_object_weakrefs",
    "get_current_stream",
    "device",
    "_is_profiler_enabled",
}
"""What Dynamo's code calls for profilers, and for graphs with streams of the user."""


@dataclass(frozen=True)
class DynamoEntry:
    """An entry of Dynamo's cache.

    Attributes:
        guards: decide for a call whether the code is right for it.
        code: what Dynamo runs in place of the function's code.
    """

    guards: Any
    code: CodeType

    @property
    def is_alive(self) -> bool:
        """Whether it is still in the cache, and all objects exist that it compares by identity."""
        return self.guards.cache_entry is not None

    def fits(self, variables: Mapping[str, object]) -> bool:
        """Whether the guards pass for a call.

        Args:
            variables: the function's arguments and free variables by name.
        """
        return self.guards.cache_entry is not None and self.guards.root.check(variables)


def latest_entry(code: CodeType) -> DynamoEntry | None:
    """The entry that the last call of a function has used; None if there is none."""
    entries = _entries(code)
    return DynamoEntry(entries[0].guard_manager, entries[0].code) if entries else None


def only_calls_its_graph(code: CodeType) -> bool:
    """Whether Dynamo's code has no effect but that of the one graph that it calls.

    Such code fetches arguments, parameters and buffers, calls the graph, and builds what is
    returned from tuples, lists and dicts. All else needs a store or another name.
    """
    graphs = [name for name in code.co_names if name.startswith("__compiled_fn_")]
    others = {*code.co_names} - {*graphs, *_FETCHED, *_BOOKKEEPING}
    return (
        len(graphs) == 1
        and all(name.startswith("__import_") for name in others)
        and not any(map(_is_store, dis.get_instructions(code)))
    )


def _is_store(instruction: dis.Instruction) -> bool:
    """Whether an instruction changes an object or a variable that outlives the call."""
    name = instruction.opname
    return name.startswith(("STORE_", "DELETE_")) and "FAST" not in name


def is_ordinary_call() -> bool:
    """Whether Dynamo would run what it has compiled, and nobody watches operators or traces them.

    It would not with `torch.compiler.set_stance`, nor in a call from code that it compiles.
    """
    return (
        not torch.compiler.is_compiling()  # first: Dynamo itself traces nothing behind it
        and _eval_frame._stance.stance == "default"
        and _n_dispatch_modes() == 0
        and not _is_tracing()
    )


def global_state() -> Any:
    """The state that Dynamo guards in each call; its `check()` says whether it is unchanged."""
    return _GlobalState()
