"""How the captured graphs of a program depend on its callers, and share memory with them."""

from collections.abc import Sequence
from dataclasses import dataclass

from nimble_fx.runtime.launch import Launcher


@dataclass(frozen=True)
class OutputPolicy:
    """The positions of outputs that alias the graph's memory instead of being copied out.

    Attributes:
        aliased: outputs of the user, which the next replay overwrites.
        saved: outputs that are saved for the backward.
    """

    aliased: Sequence[int] = ()
    saved: Sequence[int] = ()


@dataclass(frozen=True)
class CaptureOptions:
    """How the captured graphs of a program depend on its callers, and share memory with them.

    Attributes:
        max_graphs: the most captured graphs for each set of parameters.
        copy_outputs: whether the user's outputs are copied out of the graph's memory.
        n_user_outputs: how many of the first outputs are the user's; a forward saves the others
            for its backward. None: all.
        is_backward: whether it reads tensors that a forward saved. Its outputs are gradients, which
            are copied in any case, because autograd may keep them and add to them.
        returns_views_of_inputs: whether outputs of the user may be views of inputs.
        are_guarded: whether PyTorch's guards notice changes of the weights' shapes, strides and
            types, such as by an assignment to `.data`; if not, each call compares these.
    """

    max_graphs: int = 8
    copy_outputs: bool = True
    n_user_outputs: int | None = None
    is_backward: bool = False
    returns_views_of_inputs: bool = False
    are_guarded: bool = True

    @property
    def saves(self) -> bool:
        """Whether it is a forward or a backward, which save or read tensors in place."""
        return self.is_backward or self.n_user_outputs is not None

    def output_policy(self, launcher: Launcher, saves_in_place: bool) -> OutputPolicy:
        """Which outputs of a captured graph alias its memory.

        Those of a program that writes to its inputs are copied: one may come back as an input.
        """
        n_outputs = len(launcher.graph.outputs)
        n_user = n_outputs if self.n_user_outputs is None else self.n_user_outputs
        are_aliased = not (self.copy_outputs or self.is_backward or launcher.mutated_inputs)
        aliased = range(n_user if are_aliased else 0)
        return OutputPolicy(aliased, saved=range(n_user, n_outputs if saves_in_place else n_user))
