"""Values for Triton's kernels, Inductor's and others: `install()`, before any is compiled.

Triton compiles as for a GPU, to a cubin that the stand-in loads and launches by name. A launch is
a host function of the stream, or a node of a graph, with its own copy of the parameters; when it
runs, the source of the cubin is interpreted by Triton's own interpreter. All memory is the host's,
so that pointers are good as they are. There is no inline assembly, and no argument that is a tuple.
"""

import ctypes
import threading
from collections import Counter
from functools import wraps
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._inductor.runtime import triton_heuristics
from triton.compiler import compiler
from triton.runtime import jit

from tests.cuda_runtime.below_dispatch import BelowDispatch, WithoutDynamo
from tests.cuda_runtime.cuda_libraries import driver
from tests.cuda_runtime.host_functions import note_error
from tests.cuda_runtime.triton_kernel import TritonKernel, note_source, rewritten

launches: Counter[str] = Counter()
"""How many launches of each kernel were interpreted."""

_kernels: dict[int, TritonKernel] = {}
_lock = threading.RLock()  # the interpreter replaces functions of triton.language while it runs
_thread = threading.local()


def _run_launch(number: int, grid: Any, parameters: int) -> None:
    with WithoutDynamo():
        try:
            with _lock, BelowDispatch():
                _interpret(number, (grid[0], grid[1], grid[2]), parameters)
        except BaseException as error:
            note_error(error)


def _interpret(number: int, grid: tuple[int, int, int], parameters: int) -> None:
    if number not in _kernels:
        _kernels[number] = TritonKernel(number)
    _thread.is_in_kernel = True
    try:
        _kernels[number].run(grid, parameters)
    finally:
        _thread.is_in_kernel = False
    launches[_kernels[number].name] += 1


_Interpreter = ctypes.CFUNCTYPE(None, ctypes.c_long, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p)
_interpreter = _Interpreter(_run_launch)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a `@triton.jit` function from a kernel that is interpreted."""
    if not getattr(_thread, "is_in_kernel", False):
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")
    kwargs.pop("_semantic", None)
    return rewritten(self.fn)(*args, **kwargs)


def _locked(function: Any) -> Any:
    """The function, never while a kernel is interpreted: Inductor compiles in other threads too."""

    @wraps(function)  # PyTorch looks at the parameters
    def locked(*args: Any, **kwargs: Any) -> Any:
        with _lock:
            return function(*args, **kwargs)

    return locked


def install() -> None:
    """Makes kernels that are compiled from now on compute; once."""
    _compile_here()
    make = compiler.CompiledKernel.__init__

    def init(self: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        make(self, source, *args, **kwargs)
        note_source(self.kernel, source)

    compiler.CompiledKernel.__init__ = init
    compiler.ASTSource.make_ir = _locked(compiler.ASTSource.make_ir)
    keyed = next(each for each in jit.JITFunction.__mro__ if "cache_key" in vars(each))
    keyed.cache_key = property(_locked(keyed.cache_key.fget))
    jit.JITFunction.__call__ = _call
    driver.standin_set_interpreter(_interpreter)


def _compile_here() -> None:
    """Lets Inductor compile in this process, where the source is seen, and time nothing."""
    config: Any = torch._inductor.config
    config.compile_threads = 1
    config.fx_graph_cache = False  # it has cubins without their source
    autograd: Any = torch._functorch.config
    autograd.enable_autograd_cache = False
    tuner: Any = triton_heuristics.CachingAutotuner
    tuner.bench = lambda self, launcher, *args, **kwargs: 1.0  # so that the first is taken
