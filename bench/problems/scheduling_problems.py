"""Small scheduling problems: windows of traced models, and random task graphs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

import torch

from nimble_fx.cost import Cost
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph


@dataclass(frozen=True)
class Instance:
    """A scheduling problem.

    Attributes:
        name: its name.
        graph: tasks with the orders between them (`after`), without streams.
        costs: the cost of each launching task, in whole nanoseconds.
    """

    name: str
    graph: TaskGraph
    costs: Mapping[str, Cost]


def windows(
    name: str, graph: TaskGraph, costs: Mapping[str, Cost], n_tasks: int, n_windows: int
) -> Iterator[Instance]:
    """Stretches of consecutive tasks of a program, evenly spread over it.

    A path between two tasks of a stretch lies in it, so that no order is lost.

    Args:
        name: the program's name.
        graph: its tasks in program order.
        costs: the costs of its tasks.
        n_tasks: the number of launching tasks in a stretch.
            n_windows: how many stretches; fewer if the program is short, none if nothing launches.
    """
    position = [i for i, task in enumerate(graph.tasks) if task.launches]
    if not position:
        return
    last = max(0, len(position) - n_tasks)
    firsts = {round(last * (w + 0.5) / n_windows) for w in range(n_windows)}
    for first in sorted(firsts):
        within = position[first : first + n_tasks]
        tasks = graph.tasks[within[0] : within[-1] + 1]
        names = {task.name for task in tasks if task.launches}
        cut = [task.updated(after=tuple(n for n in task.after if n in names)) for task in tasks]
        yield Instance(
            f"{name}, tasks {first} to {first + len(within) - 1}",
            replace(graph, tasks=tuple(cut)),
            {task: in_nanoseconds(costs[task]) for task in names},
        )


def random_instance(seed: int, n_tasks: int) -> Instance:
    """A random task graph, the same for the same seed.

    A task comes after each of the eight before it with a probability that is drawn once for the
    graph, takes 2 to 40 microseconds, and asks for up to all of the device.
    """
    random = Random(seed)
    density = random.choice([0.1, 0.2, 0.4])
    tasks, costs = [], {}
    for i in range(n_tasks):
        after = tuple(f"t{j}" for j in range(max(0, i - 8), i) if random.random() < density)
        tasks.append(_task(i, after))
        share, bandwidth = random.random() ** 2, random.random() ** 2
        us = 2.0 * 20 ** random.random()
        costs[f"t{i}"] = in_nanoseconds(
            Cost(us=us, nbytes=0.0, flops=0.0, share=share, bandwidth=bandwidth)
        )
    name = f"random, seed {seed}"
    return Instance(name, TaskGraph(name, (), (), tuple(tasks), ()), costs)


def _task(i: int, after: tuple[str, ...]) -> Task:
    name = f"t{i}"
    return Task(
        name, torch.ops.aten.cat.default, (tuple(map(Ref, after)),), index=i,
        reads=after, writes=(name,), allocates=(name,), holds=(name,), after=after,
    )  # fmt: skip


def in_nanoseconds(cost: Cost) -> Cost:
    """The cost rounded to whole nanoseconds, for integer programs."""
    return replace(cost, us=round(1e3 * cost.us) / 1e3)


def without_sharing(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """Costs of tasks that run concurrently without slowing each other down."""
    return {name: replace(cost, share=0.0, bandwidth=0.0) for name, cost in costs.items()}
