"""Blocks in which operators call only their kernels, whatever modes are on."""

import ctypes
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import _C


def dispatch_keys(*names: str) -> Any:
    """A set of dispatch keys."""
    sets = [_C.DispatchKeySet(getattr(_C.DispatchKey, name)) for name in names]
    return reduce(lambda a, b: a | b, sets)


_ABOVE_KERNELS = dispatch_keys(
    *("Python", "PythonTLSSnapshot", "Functionalize", "ADInplaceOrView", "AutogradCPU"),
    *("AutogradCUDA", "AutogradOther", "AutocastCPU", "AutocastCUDA", "FuncTorchBatched"),
    *("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "PreDispatch"),
)


class BelowDispatch:
    """Within, no mode, subclass, autograd or autocast sees an operator."""

    def __enter__(self) -> None:
        self._guards: list[Any] = [
            _C.DisableTorchFunction(),
            _C._DisableTorchDispatch(),
            _C._ExcludeDispatchKeyGuard(_ABOVE_KERNELS),
        ]
        for guard in self._guards:
            if hasattr(guard, "__enter__"):
                guard.__enter__()
        self._python: Any = _C._DisablePythonDispatcher()

    def __exit__(self, *_: object) -> None:
        del self._python
        for guard in reversed(self._guards):
            if hasattr(guard, "__exit__"):
                guard.__exit__(None, None, None)
        self._guards.clear()


_torch_python = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib/libtorch_python.so"))
_make_guard = _torch_python._ZN5torch3jit29ToIValueAllowNumbersAsTensorsC1Eb
_drop_guard = _torch_python._ZN5torch3jit29ToIValueAllowNumbersAsTensorsD1Ev
_make_guard.argtypes, _drop_guard.argtypes = [ctypes.c_void_p, ctypes.c_bool], [ctypes.c_void_p]
_make_guard.restype = _drop_guard.restype = None


class NumbersAsTensors:
    """Within, a kernel takes a Python number for a tensor, as it came: `x + 1` is `add.Tensor`."""

    def __enter__(self) -> None:
        self._guard = ctypes.create_string_buffer(16)
        _make_guard(self._guard, True)

    def __exit__(self, *_: object) -> None:
        _drop_guard(self._guard)


set_eval_frame: Any = _C._dynamo.eval_frame.set_eval_frame
"""Dynamo would trace functions of the stand-in that are called from code that it runs as it is."""


class WithoutDynamo:
    """Within, nothing is traced."""

    def __enter__(self) -> None:
        self._before = set_eval_frame(None)

    def __exit__(self, *_: object) -> None:
        set_eval_frame(self._before)
