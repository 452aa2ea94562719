"""The private names of PyTorch that this project uses.

Every other module imports them from here or from a module next to this one, or uses `lookup` for a
name that no other module needs. If a version of PyTorch lacks a type, importing this module raises
an ImportError that says so. If it lacks a function, calling that function raises an
UnsupportedError: the compiler then runs the graph another way and reports a fallback.
"""

from importlib import import_module
from typing import Any, NoReturn

import torch

from nimble_fx.errors import UnsupportedError

try:
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    raise ImportError(
        f"nimble_fx does not work with PyTorch {torch.__version__}: {error}. It needs PyTorch 2.11 "
        "or newer; if yours is, look for a newer nimble_fx"
    ) from error


__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "pytree",
]


class Missing:
    """A placeholder for a private name that this PyTorch does not have; any use of it raises."""

    def __init__(self, path: str) -> None:
        self.__dict__["path"] = path

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises an error that names what is missing.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"PyTorch {torch.__version__} has no {self.path}, which nimble_fx needs here. Please "
            "report this, and use an older PyTorch until it is fixed"
        )

    def __getattr__(self, name: str) -> NoReturn:
        self()


def lookup(path: str) -> Any:
    """The object that a dotted name stands for, or a `Missing` if this PyTorch does not have it.

    Args:
        path: such as "torch._C._storage_Use_Count"; its modules are imported.
    """
    parts = path.split(".")
    found: Any = torch
    for i, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            try:
                import_module(".".join(parts[:i]))
            except ImportError:
                return Missing(path)
        found = getattr(found, part)
    return found


DisableAutocast = lookup("torch._C._DisableAutocast")
DisablePythonDispatcher = lookup("torch._C._DisablePythonDispatcher")
DisableTorchFunction = lookup("torch._C.DisableTorchFunction")
clear_cublas_workspaces = lookup("torch._C._cuda_clearCublasWorkspaces")
current_cuda_device = lookup("torch._C._cuda_getDevice")
current_cuda_stream = lookup("torch._C._cuda_getCurrentRawStream")
disable_modes = lookup("torch.utils._python_dispatch._disable_current_modes")
end_allocate_to_pool = lookup("torch._C._cuda_endAllocateToPool")
has_kernel = lookup("torch._C._dispatch_has_kernel")
has_kernel_for_dispatch_key = lookup("torch._C._dispatch_has_kernel_for_dispatch_key")
is_any_autocast_enabled = lookup("torch._C._is_any_autocast_enabled")
is_legacy_batched = lookup("torch._C._functorch.is_legacy_batchedtensor")
is_wrapper_subclass = lookup("torch.utils._python_dispatch.is_traceable_wrapper_subclass")
neg_view = lookup("torch._neg_view")
no_python_dispatcher = lookup("torch._dispatch.python.no_python_dispatcher")
operator_names = lookup("torch._C._dispatch_get_all_op_names")
part_of_tensor = lookup("torch._C._dynamo.guards._reinterpret_tensor")
storage_use_count = lookup("torch._C._storage_Use_Count")
