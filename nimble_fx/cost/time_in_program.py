"""Measures the times of tasks on a CPU within the program, each after the tasks before it.

Repeated by itself, a task is faster than in the program, where its code and parameters are no
longer in the caches, and its result may be in memory with page faults to come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from nimble_fx.cost.timing_interpreter import TimingInterpreter
from nimble_fx.ir.task_graph import TaskGraph

MIN_RUNS, MAX_RUNS = 5, 50
ENOUGH_SECONDS = 0.25
"""The program runs for about this long, within these bounds."""


@dataclass(frozen=True)
class ProgramTimes:
    """Measured times of a program's tasks.

    Attributes:
        seconds: for each launching task, the median over runs; including the views since the task
            before and the frees after it.
        failed: for the other tasks, the errors of their operators.
    """

    seconds: Mapping[str, float]
    failed: Mapping[str, str]


def measured_in_program(graph: TaskGraph) -> ProgramTimes:
    """Runs a graph on synthetic values a few times, and times each task.

    An operator that raises with such values is not timed, and later tasks get a synthetic result.
    Results that vanish or overflow are overwritten, because a CPU is slow with denormal numbers;
    the first run, which is not timed, finds which do.

    Cost: up to 52 runs of the program in about a quarter of a second, or 7 that take longer; the
    memory of its inputs and parameters once more, twice for those that it writes.

    Args:
        graph: on the CPU, traced or scheduled, without symbolic sizes.
    """
    interpreter = TimingInterpreter(graph)
    interpreter.warm_up()
    start = perf_counter()
    interpreter.run()
    n = max(MIN_RUNS, min(MAX_RUNS, int(ENOUGH_SECONDS / (perf_counter() - start))))
    runs = [interpreter.run() for _ in range(n)]
    timed = [name for name in runs[0] if name not in interpreter.failed]
    seconds = {name: median(run[name] for run in runs) for name in timed}
    return ProgramTimes(seconds, interpreter.failed)
