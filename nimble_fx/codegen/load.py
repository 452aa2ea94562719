"""Loads the text of a module as a callable, with its lines in tracebacks and pdb."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nimble_fx.codegen.traceback_text import show_text
from nimble_fx.ir.python_bindings import fastest_binding
from nimble_fx.torch_internals.names import OpOverloadPacket


class _Operators:
    """Replaces `torch.ops.aten` in loaded modules, with the fastest binding of each operator."""

    def __getattr__(self, name: str) -> "_Overloads":
        overloads = self.__dict__[name] = _Overloads(getattr(torch.ops.aten, name))
        return overloads


class _Overloads:
    """The overloads of an operator, by their fastest bindings."""

    def __init__(self, packet: OpOverloadPacket) -> None:
        self._packet = packet

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__[name] = fastest_binding(getattr(self._packet, name))
        return function


_ATEN = _Operators()


@dataclass(frozen=True)
class LoadedModule:
    """A loaded emitted module.

    Attributes:
        call: `call(inputs, p, streams, e) -> outputs`; it enqueues the program once.
        n_streams: the number of streams that it takes.
        urgent: the stream that a CUDA graph prefers; None for none.
        events: the attributes that `e` must have.
        inputs: the names of the items of `inputs`, in order.
        parameters: the attributes that `p` must have, in order.
    """

    call: Callable[..., tuple[Any, ...]]
    n_streams: int
    urgent: int | None
    events: tuple[str, ...]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]


def load(source: str, file: str) -> LoadedModule:
    """Executes the text of a module, which tracebacks show as `file`.

    The text runs with the rights of this process: load only what nimble_fx emitted.
    """
    module: dict[str, Any] = {"__name__": Path(file).stem, "__file__": file}
    code = compile(source, file, "exec")
    show_text(code, source)
    exec(code, module)
    call = module.pop("call")  # or its globals would be a reference cycle
    show_text(call.__code__, source)
    module["aten"] = _ATEN
    return LoadedModule(
        call,
        module["N_STREAMS"],
        module.get("URGENT"),
        module["EVENTS"],
        module["INPUTS"],
        module["PARAMETERS"],
    )
