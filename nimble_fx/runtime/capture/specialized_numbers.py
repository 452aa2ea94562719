"""The numbers of a call that a captured graph is specialized on."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from nimble_fx.ir.symbolic_sizes import symbols_in, unnamed_symbols
from nimble_fx.ir.task_graph import TaskGraph, ref_names
from nimble_fx.ir.types import ScalarType


class SpecializedNumbers:
    """Selects the numbers among a program's inputs, and the sizes of tensors, that it depends on.

    A number of which no task and no size depends is left out: the outer size of a nested tensor
    stands for its offsets, and is new for each. The rows of its values are in no number.
    """

    def __init__(self, graph: TaskGraph, inputs: Sequence[int]) -> None:
        """Determines which numbers and sizes these are.

        Args:
            graph: the program's graph.
            inputs: the positions of the inputs that calls pass.
        """
        values = [graph.inputs[i] for i in inputs]
        types = [value.type for value in graph.values if not isinstance(value.type, ScalarType)]
        sizes = frozenset().union(*map(symbols_in, types))
        used = {*chain(*[task.uses for task in graph.tasks]), *ref_names(graph.outputs)}
        scalars = [k for k, value in enumerate(values) if isinstance(value.type, ScalarType)]
        unnamed = unnamed_symbols(values)
        self._numbers = [
            k
            for k in scalars
            if values[k].name in used or not sizes.isdisjoint(symbols_in(values[k].type))
        ]
        self._tensors = [k for k, value in enumerate(values) if value.name in unnamed]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._numbers or self._tensors)

    def of(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The numbers and sizes of one call."""
        numbers = tuple([inputs[k] for k in self._numbers]) if self._numbers else ()
        if not self._tensors:
            return numbers
        tensors = [inputs[k] for k in self._tensors]
        return (*numbers, *chain(*[(*each.shape, *each.stride()) for each in tensors]))
