"""Records the runs of programs in a call of a model."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
        is_wrapped: whether AOTAutograd may do more in the call than to run the program.
    """

    run: Boxed
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    is_wrapped: bool

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
        self._here = _Recordings()

    @contextmanager
    def recording(self, outputs: Sequence[Any] | None = None) -> Iterator[list[RecordedRun]]:
        """Records the runs of this thread in the block, which may be within another such block.

        Args:
            outputs: what programs return instead of running; None if they run.
        """
        recording = _Recording([], outputs)
        self._here.active.append(recording)
        try:
            yield recording.runs
        finally:
            self._here.active.pop()

    def watch(self, run: Boxed, is_wrapped: bool) -> Boxed:
        """The program, wrapped so that its runs are recorded."""

        @boxed
        def call(args: list[Any]) -> Sequence[Any]:
            recordings = self._here.active
            if not recordings:
                return run(args)
            inputs, outputs = list(args), recordings[-1].outputs
            if outputs is not None:
                recordings[-1].runs.append(RecordedRun(run, inputs, outputs, is_wrapped))
                return outputs
            outputs = run(args)
            for recording in recordings:
                recording.runs.append(RecordedRun(run, inputs, outputs, is_wrapped))
            return outputs

        return call


@dataclass(frozen=True)
class _Recording:
    """A block that records: the runs so far, and what programs return instead of running."""

    runs: list[RecordedRun]
    outputs: Sequence[Any] | None


class _Recordings(threading.local):
    """The recordings of the current thread, the outermost first."""

    def __init__(self) -> None:
        self.active: list[_Recording] = []
