"""A program bound to parameters: each call checks its inputs, then runs the program."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from nimble_fx.devices import DeviceRuntime
from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.ir.display import plural
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.symbolic_sizes import symbols_in
from nimble_fx.ir.task_graph import Input, TaskGraph
from nimble_fx.ir.types import ScalarType, Size, TensorType
from nimble_fx.ir.written_inputs import written_inputs
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.folding.folded_weights import FoldedWeights, folded_weights
from nimble_fx.runtime.input_types import check_expressions, check_type
from nimble_fx.runtime.launch import loses_tangents
from nimble_fx.runtime.shared_memory import SharedMemory
from nimble_fx.torch_internals.dynamo.boxed import Boxed
from nimble_fx.torch_internals.forward_ad import carry_tangents
from nimble_fx.torch_internals.names import DisableAutocast


class BoundProgram:
    """A callable that runs a program with fixed parameters.

    Attributes:
        status: whether it is frozen, and if not, why not.
    """

    def __init__(
        self,
        program: ScheduledProgram,
        parameters: nn.Module | Mapping[str, Tensor],
        device: DeviceRuntime,
        run: Boxed,
        status: CaptureStatus,
    ) -> None:
        """Checks the parameters.

        Args:
            program: the program.
            parameters: a module, or tensors by name.
            device: runs the program.
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
        self._folded = _folded_of(program, tensors, device)
        self._inferred = _inferred_sizes(graph)
        self._integers = program.sizes.keys()
        self._positions = [
            i
            for i, value in enumerate(graph.inputs)
            if not value.static and i not in self._inferred
        ]
        self._symbolic = [i for i in self._positions if symbols_in(graph.inputs[i].type)]
        written = written_inputs(graph)
        self._written = [i for i, value in enumerate(given) if value.name in written]
        self._shared_memory = SharedMemory.of(graph)
        self._check_memory(self._values)
        self._loses_tangents = program.n_folded > 0 or loses_tangents(graph, device)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Runs the program and returns its outputs.

        Args:
            inputs: the graph's inputs that are neither parameters nor sizes of others, in order.

        Raises:
            InputError: their types are not those of the graph's inputs.
            UnsupportedError: the caller captures a CUDA graph, and the program has folded weights.
        """
        if len(inputs) != len(self._positions):
            names = ", ".join(self._graph.inputs[i].name for i in self._positions)
            expected = plural(len(self._positions), "input")
            raise InputError(f"{self._graph.name} takes {expected} ({names}), not {len(inputs)}")
        sizes = dict(self._sizes)
        values = list(self._values)
        for i, actual in zip(self._positions, inputs, strict=True):
            value = self._graph.inputs[i]
            check_type(value, actual, f"input {value.name}", sizes)
            self._check_integer(value, actual)
            values[i] = actual
        for i, size in self._inferred.items():
            values[i] = sizes[size]
        for i in self._symbolic:
            check_expressions(self._graph.inputs[i], values[i], sizes)
        self._check_memory(values)
        if self._loses_tangents and carry_tangents(inputs):
            raise InputError(
                f"an input of {self._graph.name} carries a tangent, which its kernels or device "
                "drop: compile with kernels='aten', fold_weights=False and device=None"
            )
        with torch.no_grad(), DisableAutocast():
            outputs = list(self._run([*values, *self._folded_weights()]))
        increment_version([values[i] for i in self._written])  # Inductor does not, nor a replay
        return outputs

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses to be pickled or copied.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"the program {self._graph.name} with its parameters cannot be pickled or copied: it "
            "holds code and captures of this process. Save the program, and bind it again"
        )

    def __repr__(self) -> str:
        names = ", ".join(self._graph.inputs[i].name for i in self._positions)
        return f"<{self._graph.name}({names}) with its parameters>"

    def _folded_weights(self) -> Sequence[Tensor]:
        if self._folded is None:
            return ()
        folded, weights = self._folded
        if folded.caller_captures:
            raise UnsupportedError(
                f"{self._graph.name} cannot be captured in a CUDA graph of yours, which could "
                "outlive its folded weights: compile with fold_weights=False"
            )
        return folded(weights)

    def _check_integer(self, value: Input, actual: Any) -> None:
        """Checks that a size is an integer that PyTorch can take.

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
    """The sizes among the inputs that the shapes of other inputs determine, by position."""
    types = [value.type for value in graph.inputs if not value.static]
    sizes = {size for t in types if isinstance(t, TensorType) for size in t.shape}
    return {
        i: value.type.expression
        for i, value in enumerate(graph.inputs)
        if isinstance(value.type, ScalarType) and value.type.expression in sizes
    }


def _named_tensors(parameters: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors by name; for a module its parameters and buffers, tied ones under each name."""
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
    """The parameters and buffers among the inputs, checked; None at the positions of other inputs.

    Args:
        program: the program's name, for errors.
        inputs: the program's inputs.
        paths: the model's names of parameters and buffers, by the graph's names.
        tensors: the tensors by either name.
        sizes: the known symbolic sizes; adds those of the parameters.
    """
    values: list[Any] = [None] * len(inputs)
    for i, value in enumerate(inputs):
        if value.static:
            path = paths.get(value.name, value.name)
            values[i] = _parameter(tensors, value, path, program)
            check_type(value, values[i], f"parameter {path}", sizes)
    return values


def _folded_of(
    program: ScheduledProgram, tensors: Mapping[str, Tensor], device: DeviceRuntime
) -> tuple[FoldedWeights, Sequence[Tensor]] | None:
    """The folded weights of a program, and what they are computed from; None if it has none."""
    if program.folded is None:
        return None
    graph, paths = program.folded.graph, program.folded.parameters
    weights = _static_values(graph.name, graph.inputs, paths, tensors, {})
    return folded_weights(program.graph, program.folded, device, are_guarded=False), weights


def _parameter(tensors: Mapping[str, Tensor], value: Input, path: str, program: str) -> Tensor:
    """The tensor for an input, looked up by the model's name or the graph's."""
    for name in (path, value.name):
        if name in tensors:
            return tensors[name]
    shown = ", ".join([*map(str, islice(tensors, 3)), *["..."] * (len(tensors) > 3)]) or "none"
    raise InputError(
        f"{program} needs the parameter {path}: {value.type}, which is not among the "
        f"{len(tensors)} that were given ({shown}); bind the model that was compiled, if that is a "
        f"parameter or buffer of it, or a mapping that has {path!r}"
    )
