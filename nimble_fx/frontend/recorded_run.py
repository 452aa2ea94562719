"""Records the inputs of each program in the example call of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nimble_fx.runtime.fastest import winner_of
from nimble_fx.runtime.folding.folded_run import FoldedRun
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed


@dataclass(frozen=True)
class RecordedRun:
    """One run of a program.

    Attributes:
        run: the program.
        inputs: its inputs, including parameters and buffers.
    """

    run: Boxed
    inputs: Sequence[Any]

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


class Recorder:
    """Records the runs of a model's programs, in one thread.

    Attributes:
        runs: the runs so far; None while it does not record.
    """

    def __init__(self) -> None:
        self.runs: list[RecordedRun] | None = None

    def watch(self, run: Boxed) -> Boxed:
        """The program, wrapped so that its runs are recorded while `runs` is a list."""

        @boxed
        def call(args: list[Any]) -> Sequence[Any]:
            if self.runs is not None:
                self.runs.append(RecordedRun(run, list(args)))
            return run(args)

        return call
