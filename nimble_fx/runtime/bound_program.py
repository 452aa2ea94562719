"""A program with its parameters: what a call is given is checked, then the program runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.ir.display import plural
from nimble_fx.ir.symbolic_sizes import Sizes, number
from nimble_fx.ir.task_graph import Input, ScalarType, Size, TaskGraph, TensorType, dtype_name
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.torch_internals.storages import storage_key

_NUMBERS = (int, float, bool)


class BoundProgram:
    """Runs a program with parameters that it was given once.

    Attributes:
        status: whether it is frozen, and if not, why.
    """

    def __init__(
        self,
        graph: TaskGraph,
        paths: Mapping[str, str],
        parameters: nn.Module | Mapping[str, Tensor],
        run: Callable[[list[Any]], Sequence[Any]],
        status: CaptureStatus,
    ) -> None:
        """Checks the parameters.

        Args:
            graph: the program's.
            paths: what the model calls parameters and buffers, by the graph's names.
            parameters: a module, or tensors by name.
            run: runs the program on a list of all its inputs.
            status: what `run` says of how it runs.

        Raises:
            InputError: a parameter is missing, or is not what the graph was made for.
        """
        self.status = status
        self._graph, self._run = graph, run
        tensors = _tensors_of(parameters)
        self._values: list[Any] = [None] * len(graph.inputs)
        self._sizes: dict[Size, Any] = {}
        self._told = _sizes_that_shapes_tell(graph)
        self._given = [
            i for i, value in enumerate(graph.inputs) if not value.static and i not in self._told
        ]
        for i, value in enumerate(graph.inputs):
            if value.static:
                path = paths.get(value.name, value.name)
                self._values[i] = _parameter(tensors, value, path, graph.name)
                _check(value, self._values[i], f"parameter {path}", self._sizes)
        self._written = {storage for task in graph.tasks for storage in task.writes}
        self._check_memory(self._values)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The program's outputs.

        Args:
            inputs: the graph's inputs that are neither parameters nor sizes of others, in order.

        Raises:
            InputError: they are not of the types that the graph was made for.
        """
        if len(inputs) != len(self._given):
            names = ", ".join(self._graph.inputs[i].name for i in self._given)
            wanted = plural(len(self._given), "input")
            raise InputError(f"{self._graph.name} takes {wanted} ({names}), not {len(inputs)}")
        sizes = dict(self._sizes)
        values = list(self._values)
        for i, given in zip(self._given, inputs, strict=True):
            value = self._graph.inputs[i]
            _check(value, given, f"input {value.name}", sizes)
            values[i] = given
        for i, size in self._told.items():
            values[i] = sizes[size]
        for i in self._given:
            _check_steps(self._graph.inputs[i], values[i], sizes)
        if any(not self._written.isdisjoint(self._graph.inputs[i].holds) for i in self._given):
            self._check_memory(values)
        with torch.no_grad():
            return list(self._run(values))

    def __repr__(self) -> str:
        names = ", ".join(self._graph.inputs[i].name for i in self._given)
        return f"<{self._graph.name}({names}) with its parameters>"

    def _check_memory(self, values: Sequence[Any]) -> None:
        """What the graph writes through one name must not be read by another that it knows not of.

        Raises:
            InputError: inputs share memory that is written, and did not when it was traced.
        """
        owners: dict[int, Input] = {}
        for value, tensor in zip(self._graph.inputs, values, strict=True):
            if not isinstance(tensor, Tensor):
                continue
            other = owners.setdefault(storage_key(tensor), value)
            both = {*other.holds, *value.holds}
            if other.holds != value.holds and not self._written.isdisjoint(both):
                raise InputError(
                    f"{other.name} and {value.name} share memory, which {self._graph.name} writes: "
                    "they did not when it was compiled; compile it again"
                )


def _sizes_that_shapes_tell(graph: TaskGraph) -> dict[int, Size]:
    """The positions of inputs that are a size of a tensor that is given, and which size."""
    given = [value.type for value in graph.inputs if not value.static]
    told = {size for t in given if isinstance(t, TensorType) for size in t.shape}
    return {
        i: value.type.expression
        for i, value in enumerate(graph.inputs)
        if isinstance(value.type, ScalarType) and value.type.expression in told
    }


def _tensors_of(parameters: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors by name; of a module its parameters and buffers, tied ones by each name."""
    if isinstance(parameters, Mapping):
        return parameters
    if not isinstance(parameters, nn.Module):
        kind = type(parameters).__name__
        raise InputError(f"bind takes a module, or a mapping of tensors by name, not a {kind}")
    module = getattr(parameters, "_orig_mod", parameters)  # of what torch.compile made of it
    named = dict(module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def _parameter(tensors: Mapping[str, Tensor], value: Input, path: str, program: str) -> Tensor:
    """The tensor for an input, by the model's name or the graph's."""
    for name in (path, value.name):
        if name in tensors:
            return tensors[name]
    shown = ", ".join([*map(str, islice(tensors, 3)), *["..."] * (len(tensors) > 3)]) or "none"
    raise InputError(
        f"{program} needs the parameter {path}: {value.type}, which is not among the "
        f"{len(tensors)} that were given ({shown}); bind the model that was compiled, or a mapping "
        f"that has {path!r}"
    )


def _check(value: Input, given: Any, what: str, sizes: dict[Size, Any]) -> None:
    """What is given is of the input's type; a symbolic size is any number, the same everywhere."""
    if isinstance(value.type, TensorType):
        if not isinstance(given, Tensor):
            raise InputError(
                f"{what} is of type {type(given).__name__}, not a tensor: {value.type}"
            )
        for attribute, found, wanted in _attributes(value.type, given):
            if found != wanted:
                raise InputError(
                    f"{what} has the {attribute} {found}, and the program was compiled for "
                    f"{wanted}: {value.type}"
                )
        for size, found in zip(value.type.shape, given.shape, strict=True):
            _check_size(size, found, what, sizes)
    elif isinstance(value.type, ScalarType):
        if not isinstance(given, _NUMBERS):
            raise InputError(f"{what} is of type {type(given).__name__}, not a number")
        _check_size(value.type.expression, given, what, sizes)
    elif given is not None:
        raise InputError(f"{what} is of type {type(given).__name__}, and was compiled for None")


def _attributes(wanted: TensorType, given: Tensor) -> list[tuple[str, Any, Any]]:
    """Pairs that must be equal. Where a size is 1, its stride may be anything.

    Strides that go with symbolic sizes are checked once these are known.
    """
    if given.dim() != len(wanted.shape):
        return [("number of dimensions", given.dim(), len(wanted.shape))]
    if given.layout is not torch.strided:
        return [("layout", given.layout, torch.strided)]
    shape, stride = given.shape, given.stride()
    fixed = [i for i, n in enumerate(wanted.shape) if type(n) is int]
    if any(shape[i] != wanted.shape[i] for i in fixed):
        return [("shape", list(shape), f"[{', '.join(map(str, wanted.shape))}]")]
    steps = [i for i in fixed if type(wanted.stride[i]) is int and wanted.shape[i] != 1]
    return [
        ("stride", [stride[i] for i in steps], [wanted.stride[i] for i in steps]),
        ("dtype", dtype_name(given.dtype), dtype_name(wanted.dtype)),
        ("device", given.device, wanted.device),
    ]


def _check_size(size: Size, found: Any, what: str, sizes: dict[Size, Any]) -> None:
    known = sizes.setdefault(size, found)
    if type(size) is str and known != found:
        raise InputError(f"{what} has the size {found} for {size}, which is {known} elsewhere")


def _check_steps(value: Input, given: Any, sizes: Mapping[Size, Any]) -> None:
    """The strides of an input are what they were compiled for, at the sizes of a call."""
    if not isinstance(value.type, TensorType) or 0 in given.shape:
        return
    symbols = {str(name): n for name, n in sizes.items() if type(n) is int}
    steps = zip(given.shape, given.stride(), value.type.shape, value.type.stride, strict=True)
    for n, found, size, step in steps:
        if n != 1 and (type(size) is str or type(step) is str):
            wanted = _at(step, symbols)
            if wanted is not None and found != wanted:
                raise InputError(
                    f"input {value.name} has the stride {found} where the program was compiled for "
                    f"{step}, which is {wanted}: {value.type}"
                )


def _at(size: Size, sizes: Sizes) -> int | None:
    """A size as a number; None if the inputs do not tell."""
    try:
        return number(size, sizes)
    except UnsupportedError:
        return None
