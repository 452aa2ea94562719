"""Runs a program that takes folded weights for callers that pass the original weights."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.runtime.folding.folded_weights import FoldedWeights
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from nimble_fx.torch_internals.forward_ad import carry_tangents
from nimble_fx.torch_internals.storages import storage_key

NOT_COUNTED = (
    "its weights are inference tensors, whose changes PyTorch does not count: make them outside of "
    "torch.inference_mode, or compile with fold_weights=False"
)
"""The reason of the fallback for weights that cannot be kept folded."""


@boxed
class FoldedRun:
    """Adapts a program that takes folded weights to callers that pass the original weights."""

    def __init__(
        self,
        run: Boxed,
        folded: FoldedWeights,
        sources: Sequence[int],
        kept: Sequence[int],
        unfolded: Boxed,
        report_unfolded: Callable[[], None],
        may_stay_unfolded: bool = False,
    ) -> None:
        """Calls nothing yet.

        Args:
            run: the program; takes some of the arguments, and then the folded weights.
            folded: computes the folded weights.
            sources: the positions of the weights to fold among the arguments.
            kept: the positions of the arguments that `run` takes.
            unfolded: runs the program with PyTorch's kernels, such as for forward-mode
                differentiation: oneDNN's kernels drop tangents.
            report_unfolded: called when a call runs unfolded because the weights are inference
                tensors.
            may_stay_unfolded: whether to run unfolded while weights change too often for their
                folded form to pay off.
        """
        self._run, self._folded, self._sources, self._kept = run, folded, sources, kept
        self._unfolded, self._report_unfolded = unfolded, report_unfolded
        self._fold = folded.unless_changing if may_stay_unfolded else folded

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Calls the program; empties `args`.

        Raises:
            UnsupportedError: an argument has a tangent, but the weights are released.
        """
        weights = [args[i] for i in self._sources]
        if carry_tangents(args):
            if self._folded.are_released:
                raise UnsupportedError(
                    "forward-mode differentiation runs with PyTorch's kernels, whose weights were "
                    "released: compile without release_weights"
                )
            return self._unfolded(args)
        if self._folded.caller_captures:
            return self._unfolded(args)
        if not self._folded.can_be_kept(weights):
            self._report_unfolded()
            return self._unfolded(args)
        results = self._fold(weights)
        if results is None:
            return self._unfolded(args)
        inputs = [*[args[i] for i in self._kept], *results]
        args.clear()
        return self._run(inputs)

    def why_not(self, args: Sequence[Any]) -> str | None:
        """Why a call would not run with folded weights; None if it would."""
        weights = [args[i] for i in self._sources]
        return None if self._folded.can_be_kept(weights) else NOT_COUNTED

    def release_weights(self, args: Sequence[Any], returned: Sequence[Tensor]) -> int:
        """Frees the weights that are only used to compute folded weights; returns their bytes.

        They become empty tensors, and the folded weights are final.

        Args:
            args: the arguments of a call.
            returned: the tensors that the model returned, whose memory stays.
        """
        weights = [args[i] for i in self._sources]
        kept = [args[i] for i in self._kept if isinstance(args[i], Tensor)]
        read = set(map(storage_key, (*kept, *returned)))
        free = [i for i, weight in enumerate(weights) if storage_key(weight) not in read]
        return self._folded.release(weights, free)
