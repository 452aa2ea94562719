"""Records the runs of programs in a call of a model."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nimble_fx.frontend.model_function import Arguments
from nimble_fx.runtime.fastest import winner_of
from nimble_fx.runtime.folding.folded_run import FoldedRun
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.leaves import tensors_in


@dataclass(frozen=True)
class RecordedRun:
    """One run of a program.

    Attributes:
        run: the program.
        inputs: its inputs, including parameters and buffers.
        outputs: its outputs.
    """

    run: Boxed
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    def release_weights(self, returned: Sequence[Tensor]) -> int:
        """Frees the weights from which the program's folded weights are computed.

        Args:
            returned: the tensors that the model returned, whose memory stays.

        Returns:
            How many bytes it freed; 0 if the program has no folded weights, or `verify="values"`
            compares it.
        """
        run = winner_of(self.run)
        return run.release_weights(self.inputs, returned) if isinstance(run, FoldedRun) else 0


@dataclass(frozen=True)
class RecordedCall:
    """One call of a model.

    Attributes:
        arguments: its arguments.
        runs: the runs of programs in it.
        returned: what the model returned.
    """

    arguments: Arguments
    runs: Sequence[RecordedRun]
    returned: object

    def release_weights(self) -> int:
        """Frees the weights that programs read only in folded form; returns how many bytes."""
        returned = tensors_in(self.returned)
        return sum(run.release_weights(returned) for run in self.runs)


class Recorder:
    """Records the runs of a model's programs, for each thread by itself."""

    def __init__(self) -> None:
        self._here = _OfThread()

    @contextmanager
    def recording(self) -> Iterator[list[RecordedRun]]:
        """Records the runs of this thread in the block; it keeps their inputs and outputs alive."""
        before, self._here.runs = self._here.runs, []
        try:
            yield self._here.runs
        finally:
            self._here.runs = before

    @contextmanager
    def probing(self) -> Iterator[list[RecordedRun]]:
        """Records calls of programs in the block, which return empty tensors instead of running.

        They raise a TypeError if AOTAutograd may do more in a call than to run the program.
        """
        before, self._here.probes = self._here.probes, []
        try:
            yield self._here.probes
        finally:
            self._here.probes = before

    def watch(self, run: Boxed, is_wrapped: bool) -> Boxed:
        """The program, wrapped so that its runs are recorded.

        Args:
            run: the program.
            is_wrapped: whether AOTAutograd may do more in a call than to run it.
        """
        n_outputs: int | None = None

        @boxed
        def call(args: list[Any]) -> Sequence[Any]:
            nonlocal n_outputs
            if self._here.probes is not None:
                if is_wrapped or n_outputs is None:
                    raise TypeError("a call may do more than to run a program")
                made = [torch.empty(0) for _ in range(n_outputs)]
                self._here.probes.append(RecordedRun(run, list(args), made))
                return made
            inputs = None if self._here.runs is None else list(args)
            outputs = run(args)
            n_outputs = len(outputs)
            if inputs is not None and self._here.runs is not None:
                self._here.runs.append(RecordedRun(run, inputs, outputs))
            return outputs

        return call


class _OfThread(threading.local):
    """What a thread has recorded so far; None while it does not record."""

    def __init__(self) -> None:
        self.runs: list[RecordedRun] | None = None
        self.probes: list[RecordedRun] | None = None
