"""Triton's language while a kernel is interpreted, and what its interpreter lacks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.compiler.code_generator  # noqa: F401  # keeps functions of triton.language
import triton.language as tl
from triton.runtime import interpreter, jit

from tests.cuda_runtime.triton_reductions import reduce, scan

_LIBDEVICE: dict[str, Callable[..., torch.Tensor]] = {
    "isnand": torch.isnan,
    "isinfd": torch.isinf,
    "signbitd": torch.signbit,
    "powi": torch.pow,
    "rint": torch.round,
    "nearbyint": torch.round,
    "llrint": torch.round,
    "fabs": torch.abs,
    "cbrt": lambda x: x.sign() * x.abs() ** (1 / 3),
    "ilogb": lambda x: torch.frexp(x).exponent - 1,
    "ldexp": torch.ldexp,
    "fma": lambda a, b, c: a * b + c,
    "maf": lambda a, b, c: a * b + c,
    "rcp": torch.reciprocal,
    "tgamma": lambda x: torch.lgamma(x).exp(),
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
}
"""Functions of NVIDIA's libdevice that PyTorch names otherwise."""


class Interpreted:
    """Within, functions of Triton's language compute with NumPy, as a kernel's source uses them."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __enter__(self) -> Any:
        self._scope: Any = interpreter._patch_lang(self._function)
        builder = interpreter.interpreter_builder
        for module in (tl.core, tl.math):
            interpreter._patch_builtin(module, builder, self._scope)
        interpreter._patch_lang_core(tl.core, self._scope)
        self._patch_libdevice(builder)
        # Triton 3.6 with NumPy 2.4 makes no index of an array of one element
        self._scope.set_attr(tl.tensor, "__index__", lambda x: int(x.handle.data.squeeze()))
        extern = staticmethod(_extern_elementwise)
        self._scope.set_attr(type(builder), "create_extern_elementwise", extern)
        self._scope.set_attr(interpreter.ReduceOps, "generic_reduce", reduce)
        self._scope.set_attr(interpreter.ScanOps, "generic_scan", scan)
        return builder

    def __exit__(self, *_: object) -> None:
        self._scope.restore()

    def _patch_libdevice(self, builder: Any) -> None:
        """Gives the names of libdevice the functions that are compiled for CUDA."""
        from triton.language.extra import libdevice
        from triton.language.extra.cuda import libdevice as of_cuda

        for name in vars(libdevice):
            member = getattr(of_cuda, name, None)
            if isinstance(member, jit.JITFunction):
                self._scope.set_attr(libdevice, name, member)
            elif callable(member) and tl.core.is_builtin(member):
                interpreter._patch_attr(libdevice, name, member, builder, self._scope)


def _extern_elementwise(
    _library: str, _path: str, symbol: str, arguments: list[Any], to: Any, _pure: bool
) -> Any:
    function = _libdevice_function(symbol)
    values = [torch.from_numpy(np.array(argument.data)) for argument in arguments]
    made = function(*values).numpy().astype(interpreter._get_np_dtype(to.scalar))
    return interpreter.TensorHandle(made, to.scalar)


def _libdevice_function(symbol: str) -> Callable[..., torch.Tensor]:
    """PyTorch's function for one of libdevice: __nv_sinf, __nv_fast_expf, __nv_dadd_rn."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    for each in (name, name.removesuffix("f"), name.removesuffix("_rn")[1:]):
        for found in (_LIBDEVICE.get(each), getattr(torch, each, None)):
            if found is not None:
                return found
        if hasattr(torch.special, each):
            function: Callable[..., torch.Tensor] = getattr(torch.special, each)
            return function
    raise NotImplementedError(f"libdevice function {symbol}")
