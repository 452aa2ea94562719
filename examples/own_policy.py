"""Schedules a model by a policy of one's own: nothing in nimble_fx has to change for it."""

from dataclasses import dataclass

import torch
from torch import Tensor

import nimble_fx
from nimble_fx import TaskGraph


@dataclass(frozen=True)
class RoundRobin:
    """Each task goes to the next of so many streams."""

    n_streams: int = 2
    name = "round-robin"

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """The graph with a stream for each task; waits and frees follow, and the proof."""
        streams = {task.name: i % self.n_streams for i, task in enumerate(graph.launching)}
        return graph.with_streams(streams)


def model(x: Tensor) -> Tensor:
    """Three elementwise branches and their sum."""
    return x.sin() + x.cos() + x.exp()


def main() -> None:
    """Compares the number of waits with that of the policy "nimble"."""
    x = torch.randn(64)
    for policy in (RoundRobin(), "nimble"):
        compiled = nimble_fx.compile(model, x, policy=policy)
        torch.testing.assert_close(compiled(x), model(x))
        graph = compiled.programs[0].graph
        print(f"{policy}: {graph.n_streams} streams, {graph.n_waits} waits")


if __name__ == "__main__":
    main()
