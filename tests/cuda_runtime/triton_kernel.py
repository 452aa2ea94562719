"""A Triton kernel that is loaded as a cubin, interpreted from its source."""

import ctypes
import hashlib
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from tests.cuda_runtime.cuda_libraries import driver
from tests.cuda_runtime.triton_language import Interpreted

driver.standin_kernel_name.restype = ctypes.c_char_p
driver.standin_kernel_image.restype = ctypes.c_long
driver.standin_kernel_parameters.restype = ctypes.c_long

MAX_PARAMETERS = 512

_INTEGERS = {"i8": "b", "i16": "i2", "i32": "i4", "i64": "i8"}
_UNSIGNED = {"u1": "?", "u8": "B", "u16": "u2", "u32": "u4", "u64": "u8"}
_FLOATS = {"fp16": "f2", "bf16": "u2", "fp32": "f4", "f32": "f4", "fp64": "f8"}
_TYPES = {"i1": "?", **_INTEGERS, **_UNSIGNED, **_FLOATS}
"""NumPy's types of Triton's."""

_sources: dict[bytes, Any] = {}


def note_source(cubin: bytes, source: Any) -> None:
    """Remembers the source that a cubin was compiled from (Triton's `ASTSource`)."""
    _sources[hashlib.sha256(cubin).digest()] = source


class TritonKernel:
    """How to run a kernel: its function, its constants, and where a launch has its arguments."""

    def __init__(self, number: int) -> None:
        self.name: str = driver.standin_kernel_name(number).decode()
        source = _source(number)
        if source is None or not hasattr(source, "constants"):
            raise LookupError(
                f"the source of {self.name} is not known: it was compiled before install(), "
                "or in another process"
            )
        names = source.fn.arg_names
        constants = {names[at[0]]: v for at, v in source.constants.items() if len(at) == 1}
        is_constexpr = {p.name: p.is_constexpr for p in source.fn.params}
        places = iter(_places(number))
        self._arguments = list[tuple[str, str, Any, int]]()
        self._constants = dict[str, Any]()
        for name in names:
            kind = source.signature[name]
            if name in constants or kind == "constexpr":
                value = constants.get(name)
                self._constants[name] = (
                    value if is_constexpr[name] else interpreter._implicit_cvt(value)
                )
                continue
            dtype = np.dtype(np.uint64) if kind[0] == "*" else np.dtype(_TYPES[kind])
            offset, size = next(places)
            if size != dtype.itemsize:
                raise TypeError(f"{self.name}: {name} is a {kind} and has {size} bytes")
            self._arguments.append((name, kind, dtype, offset))
        self._function = source.fn.fn

    def run(self, grid: tuple[int, int, int], parameters: int) -> None:
        """Runs the kernel on the parameters at an address, as a launch has packed them."""
        with Interpreted(self._function) as builder, np.errstate(all="ignore"):
            given = {n: _argument(parameters + at, t, d) for n, t, d, at in self._arguments}
            builder.set_grid_dim(*grid)
            for position in np.ndindex(*grid):
                builder.set_grid_idx(*position)
                rewritten(self._function)(**given, **self._constants)


def rewritten(function: Any) -> Any:
    """A kernel's function as Triton's interpreter can call it."""
    known = interpreter.InterpretedFunction.rewritten_fn
    if function not in known:
        known[function] = interpreter.FunctionRewriter(function).rewrite_ast()
    return known[function]


def _source(number: int) -> Any:
    image = ctypes.c_void_p()
    size = driver.standin_kernel_image(number, ctypes.byref(image))
    cubin = ctypes.string_at(image.value or 0, size)
    return _sources.get(hashlib.sha256(cubin).digest())


def _places(number: int) -> list[tuple[int, int]]:
    """Offset and size of each parameter of a kernel."""
    offsets, sizes = (ctypes.c_int * MAX_PARAMETERS)(), (ctypes.c_int * MAX_PARAMETERS)()
    n = driver.standin_kernel_parameters(number, offsets, sizes, MAX_PARAMETERS)
    return list(zip(offsets[:n], sizes[:n], strict=True))


def _argument(address: int, kind: str, dtype: Any) -> Any:
    value = np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype).copy()
    of_triton = tl.str_to_ty(kind, None)
    return tl.tensor(interpreter.TensorHandle(value, of_triton), of_triton)
