"""How long tasks take on a CPU: each where the program calls it, after the tasks before it.

Over and over by itself a task is quicker than there, where its code and its parameters have left
the caches since they were last used, and its result may be in memory that the system has yet to
give out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from nimble_fx.cost.player import Player
from nimble_fx.ir.task_graph import TaskGraph

MIN_RUNS, MAX_RUNS = 5, 50
ENOUGH_SECONDS = 0.25
"""How often the program runs: within these bounds, for about so long."""


@dataclass(frozen=True)
class InProgram:
    """What tasks were seen to take.

    Attributes:
        seconds: by launching task: the median over runs; views since the last one, and what is
            freed then, are counted in.
        failed: why others have none: what their operators raised.
    """

    seconds: Mapping[str, float]
    failed: Mapping[str, str]


def measured_in_program(graph: TaskGraph) -> InProgram:
    """Runs a graph on made-up values a few times, and times each task.

    An operator that raises with such values is left out: later tasks get made-up results of it.
    Results that vanish or overflow are written over: a CPU is slow with numbers that are nearly
    zero. In the first run, that is, which is not timed; from then on it is known which do.

    Cost: up to 52 runs of the program in about a quarter of a second, or 7 that take longer; the
    memory of its inputs and parameters once more, and of those that it writes twice.

    Args:
        graph: on the CPU, traced or scheduled, without symbolic sizes.
    """
    player = Player(graph)
    player.settle()
    start = perf_counter()
    player.run()
    n = max(MIN_RUNS, min(MAX_RUNS, int(ENOUGH_SECONDS / (perf_counter() - start))))
    runs = [player.run() for _ in range(n)]
    timed = [name for name in runs[0] if name not in player.failed]
    return InProgram({name: median(run[name] for run in runs) for name in timed}, player.failed)
