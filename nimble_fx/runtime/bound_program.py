"""A program bound to parameters: each call checks its inputs, then runs the program."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.ir.display import plural
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.symbolic_sizes import Sizes, number
from nimble_fx.ir.task_graph import Input, ScalarType, Size, TaskGraph, TensorType, dtype_name
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.folding.folded_weights import folded_weights
from nimble_fx.runtime.shared_memory import SharedMemory
from nimble_fx.torch_internals.forward_ad import carry_tangents
from nimble_fx.torch_internals.names import DisableAutocast

_NUMBERS = (int, float, bool)


class BoundProgram:
    """A callable that runs a program with fixed parameters.

    Attributes:
        status: whether it is frozen, and if not, why.
    """

    def __init__(
        self,
        program: ScheduledProgram,
        parameters: nn.Module | Mapping[str, Tensor],
        run: Callable[[list[Any]], Sequence[Any]],
        status: CaptureStatus,
    ) -> None:
        """Checks the parameters.

        Args:
            program: the program.
            parameters: a module, or tensors by name.
            run: runs the program on a list of all its inputs.
            status: the status of `run`, which it keeps up to date.

        Raises:
            InputError: a parameter is missing or does not fit the graph.
        """
        self.status = status
        graph = program.graph
        self._graph, self._run = graph, run
        tensors = _named_tensors(parameters)
        self._n_given = len(graph.inputs) - program.n_folded
        self._sizes: dict[Size, Any] = {}
        given = graph.inputs[: self._n_given]
        self._values = _static_values(graph.name, given, program.parameters, tensors, self._sizes)
        self._folded = _folded_of(program, tensors)
        self._inferred = _inferred_sizes(graph)
        self._integers = program.sizes.keys()
        self._positions = [
            i
            for i, value in enumerate(graph.inputs)
            if not value.static and i not in self._inferred
        ]
        self._shared_memory = SharedMemory(graph.inputs, written_inputs(graph))
        self._check_memory(self._values)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Runs the program and returns its outputs.

        Args:
            inputs: the graph's inputs that are neither parameters nor sizes of others, in order.

        Raises:
            InputError: their types are not those of the graph's inputs.
        """
        if len(inputs) != len(self._positions):
            names = ", ".join(self._graph.inputs[i].name for i in self._positions)
            expected = plural(len(self._positions), "input")
            raise InputError(f"{self._graph.name} takes {expected} ({names}), not {len(inputs)}")
        sizes = dict(self._sizes)
        values = list(self._values)
        for i, actual in zip(self._positions, inputs, strict=True):
            value = self._graph.inputs[i]
            _check(value, actual, f"input {value.name}", sizes)
            self._check_integer(value, actual)
            values[i] = actual
        for i, size in self._inferred.items():
            values[i] = sizes[size]
        for i in self._positions:
            _check_strides(self._graph.inputs[i], values[i], sizes)
        self._check_memory(values)
        if self._n_given < len(self._graph.inputs) and carry_tangents(inputs):
            raise InputError(
                f"an input of {self._graph.name} carries a tangent, which oneDNN's operators drop: "
                "compile with fold_weights=False"
            )
        with torch.no_grad(), DisableAutocast():
            return list(self._run([*values, *self._folded()]))

    def __repr__(self) -> str:
        names = ", ".join(self._graph.inputs[i].name for i in self._positions)
        return f"<{self._graph.name}({names}) with its parameters>"

    def _check_integer(self, value: Input, actual: Any) -> None:
        """Checks that a number that is a size is an integer that PyTorch can take.

        Raises:
            InputError: it is not.
        """
        if not isinstance(value.type, ScalarType) or value.type.expression not in self._integers:
            return
        if type(actual) is not int or not -(2**63) <= actual < 2**63:
            size = value.type.expression
            raise InputError(
                f"input {value.name} is {actual!r:.30} for the size {size}, not an "
                "integer of 64 bits"
            )

    def _check_memory(self, values: Sequence[Any]) -> None:
        """Checks that inputs alias each other only as they did when the graph was traced.

        Raises:
            InputError: inputs share memory that is written, and did not when it was traced.
        """
        shared = self._shared_memory.found(values)
        if shared is not None:
            raise InputError(
                f"{' and '.join(shared)} share memory, which {self._graph.name} writes: they did "
                "not when it was compiled; compile it again"
            )


def _inferred_sizes(graph: TaskGraph) -> dict[int, Size]:
    """The sizes among the inputs that the shapes of other inputs have, by position."""
    types = [value.type for value in graph.inputs if not value.static]
    sizes = {size for t in types if isinstance(t, TensorType) for size in t.shape}
    return {
        i: value.type.expression
        for i, value in enumerate(graph.inputs)
        if isinstance(value.type, ScalarType) and value.type.expression in sizes
    }


def _named_tensors(parameters: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors by name; for a module its parameters and buffers, tied ones by each name."""
    if isinstance(parameters, Mapping):
        return parameters
    if not isinstance(parameters, nn.Module):
        kind = type(parameters).__name__
        raise InputError(f"bind takes a module, or a mapping of tensors by name, not a {kind}")
    module = getattr(parameters, "_orig_mod", parameters)  # set by torch.compile
    named = dict(module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def _static_values(
    program: str,
    inputs: Sequence[Input],
    paths: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    sizes: dict[Size, Any],
) -> list[Any]:
    """The parameters and buffers among some inputs, checked; None in the places of others.

    Args:
        program: its name, for errors.
        inputs: its inputs.
        paths: the model's names of parameters and buffers, by the graph's names.
        tensors: by either name.
        sizes: the known symbolic sizes; those of the parameters are added.
    """
    values: list[Any] = [None] * len(inputs)
    for i, value in enumerate(inputs):
        if value.static:
            path = paths.get(value.name, value.name)
            values[i] = _parameter(tensors, value, path, program)
            _check(value, values[i], f"parameter {path}", sizes)
    return values


def _folded_of(
    program: ScheduledProgram, tensors: Mapping[str, Tensor]
) -> Callable[[], Sequence[Tensor]]:
    """What returns the folded weights of a program as the parameters are now."""
    if program.folded is None:
        return tuple
    graph, paths = program.folded.graph, program.folded.parameters
    weights = _static_values(graph.name, graph.inputs, paths, tensors, {})
    return partial(folded_weights(program.graph, program.folded), weights)


def _parameter(tensors: Mapping[str, Tensor], value: Input, path: str, program: str) -> Tensor:
    """The tensor for an input, looked up by the model's name or the graph's."""
    for name in (path, value.name):
        if name in tensors:
            return tensors[name]
    shown = ", ".join([*map(str, islice(tensors, 3)), *["..."] * (len(tensors) > 3)]) or "none"
    raise InputError(
        f"{program} needs the parameter {path}: {value.type}, which is not among the "
        f"{len(tensors)} that were given ({shown}); bind the model that was compiled, or a mapping "
        f"that has {path!r}"
    )


def _check(value: Input, actual: Any, what: str, sizes: dict[Size, Any]) -> None:
    """Checks a value against the type of an input; a symbolic size must be the same everywhere."""
    if isinstance(value.type, TensorType):
        if not isinstance(actual, Tensor):
            raise InputError(
                f"{what} is of type {type(actual).__name__}, not a tensor: {value.type}"
            )
        for attribute, found, expected in _attributes(value.type, actual):
            if found != expected:
                raise InputError(
                    f"{what} has the {attribute} {found}, and the program was compiled for "
                    f"{expected}: {value.type}"
                )
        for size, found in zip(value.type.shape, actual.shape, strict=True):
            _check_size(size, found, what, sizes)
    elif isinstance(value.type, ScalarType):
        if not isinstance(actual, _NUMBERS):
            raise InputError(f"{what} is of type {type(actual).__name__}, not a number")
        _check_size(value.type.expression, actual, what, sizes)
    elif actual is not None:
        raise InputError(f"{what} is of type {type(actual).__name__}, and was compiled for None")


def _attributes(expected: TensorType, actual: Tensor) -> list[tuple[str, Any, Any]]:
    """Attributes that must be equal: name, actual and expected value.

    Strides of dimensions of size 1 are left out, and those that go with symbolic sizes, which are
    checked once these are known.
    """
    if actual.dim() != len(expected.shape):
        return [("number of dimensions", actual.dim(), len(expected.shape))]
    if actual.layout is not torch.strided:
        return [("layout", actual.layout, torch.strided)]
    shape, stride = actual.shape, actual.stride()
    static = [i for i, n in enumerate(expected.shape) if type(n) is int]
    if any(shape[i] != expected.shape[i] for i in static):
        return [("shape", list(shape), f"[{', '.join(map(str, expected.shape))}]")]
    strided = [i for i in static if type(expected.stride[i]) is int and expected.shape[i] != 1]
    return [
        ("stride", [stride[i] for i in strided], [expected.stride[i] for i in strided]),
        ("dtype", dtype_name(actual.dtype), dtype_name(expected.dtype)),
        ("device", actual.device, expected.device),
    ]


def _check_size(size: Size, found: Any, what: str, sizes: dict[Size, Any]) -> None:
    known = sizes.setdefault(size, found)
    if type(size) is str and known != found:
        raise InputError(f"{what} has the size {found} for {size}, which is {known} elsewhere")


def _check_strides(value: Input, actual: Any, sizes: Mapping[Size, Any]) -> None:
    """Checks the strides of an input that depend on symbolic sizes, at the sizes of a call."""
    if not isinstance(value.type, TensorType) or 0 in actual.shape:
        return
    symbols = {str(name): n for name, n in sizes.items() if type(n) is int}
    dims = zip(actual.shape, actual.stride(), value.type.shape, value.type.stride, strict=True)
    for n, found, size, stride in dims:
        if n != 1 and (type(size) is str or type(stride) is str):
            expected = _evaluated(stride, symbols)
            if expected is not None and found != expected:
                raise InputError(
                    f"input {value.name} has the stride {found} where the program was compiled for "
                    f"{stride}, which is {expected}: {value.type}"
                )


def _evaluated(size: Size, sizes: Sizes) -> int | None:
    """A size as a number; None if the inputs do not determine it."""
    try:
        return number(size, sizes)
    except UnsupportedError:
        return None
