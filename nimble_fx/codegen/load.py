"""From a module's text to a callable, with the text where tracebacks and pdb look for it."""

import io
import linecache
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from nimble_fx.ir.python_bindings import fastest_binding
from nimble_fx.torch_internals.names import OpOverloadPacket


class _Operators:
    """`torch.ops.aten` for loaded modules, by the fastest functions that call the operators."""

    def __getattr__(self, name: str) -> "_Overloads":
        overloads = self.__dict__[name] = _Overloads(getattr(torch.ops.aten, name))
        return overloads


class _Overloads:
    """An operator's overloads."""

    def __init__(self, packet: OpOverloadPacket) -> None:
        self._packet = packet

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__[name] = fastest_binding(getattr(self._packet, name))
        return function


_ATEN = _Operators()


@dataclass(frozen=True)
class Loaded:
    """An emitted module, executed.

    Attributes:
        call: `call(inputs, p, streams, e) -> outputs`; it enqueues the program once.
        n_streams: how many streams it wants.
        urgent: which of them a CUDA graph prefers; None for none.
        events: the attributes that `e` must have.
        inputs: names of what `inputs` must hold, in order.
        parameters: the attributes that `p` must have, in order.
    """

    call: Callable[..., tuple[Any, ...]]
    n_streams: int
    urgent: int | None
    events: tuple[str, ...]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]


def load(source: str, file: str) -> Loaded:
    """Executes the text; tracebacks name it `file` and show its lines.

    The text runs with the rights of this process: load only what nimble_fx emitted.
    """
    module: dict[str, Any] = {"__name__": Path(file).stem, "__file__": file}
    code = compile(source, file, "exec")
    _show(code, source)
    exec(code, module)
    call = module.pop("call")  # else it would hold itself by its globals
    _show(call.__code__, source)
    module["aten"] = _ATEN
    return Loaded(
        call,
        module["N_STREAMS"],
        module.get("URGENT"),
        module["EVENTS"],
        module["INPUTS"],
        module["PARAMETERS"],
    )


_shown: Counter[str] = Counter()
"""How many code objects there are of each file in `linecache`."""

_showing = threading.RLock()


def _show(code: CodeType, source: str) -> None:
    """Has tracebacks show the text of the code for as long as that can be in one."""
    file = code.co_filename
    with _showing:
        _shown[file] += 1
        linecache.cache[file] = (len(source), None, io.StringIO(source).readlines(), file)
    weakref.finalize(code, _hide, file).atexit = False


def _hide(file: str) -> None:
    """Takes a text out of `linecache` with the last of its code."""
    with _showing:
        _shown[file] -= 1
        if not _shown[file]:
            del _shown[file]
            linecache.cache.pop(file, None)
