"""The order of the passes, with the reason for each place, and the protocol of a pass."""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Protocol

from nimble_fx.errors import NimbleError, PassError, ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams, NamedPolicy
from nimble_fx.passes.chain_allocations import ChainAllocations
from nimble_fx.passes.chain_bookkeeping import ChainBookkeeping
from nimble_fx.passes.free_memory import FreeMemory
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.passes.order_launches import OrderLaunches
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.passes.reinplace_pointwise import ReinplacePointwise
from nimble_fx.verify.structure import check_placement, verify_structure


class Pass(Protocol):
    """A pure function on task graphs; a frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """Its name in a graph's provenance."""

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """A new graph, or the same object if there is nothing to change."""


Policy = NamedPolicy | Pass
"""Decides the streams of tasks and their launch order: a name, or a pass that assigns them."""


def passes_for(policy: Policy, max_streams: int | None) -> tuple[Pass, ...]:
    """The passes that turn a traced graph into a schedule.

    Args:
        policy: a name, or a pass that assigns each launching task a stream and may change the
            launch order of the tasks (see `launch_order`).
        max_streams: the largest number of streams; a pass as policy is not held to it here.
    """
    return (*preparation_passes(), *policy_passes(policy, max_streams), *completion_passes())


def traced_graph_passes() -> tuple[Pass, ...]:
    """The passes that run once on a traced graph, before any policy."""
    return (ReinplacePointwise(),)  # before the search: all candidates have the same tensors


def preparation_passes() -> tuple[Pass, ...]:
    """The passes that come first with all policies."""
    return (
        ChainAllocations(),  # before the reduction, which has to see the dependencies that both add
        ChainBookkeeping(),
        ReduceEdges(),  # before streams: they follow the edges of the minimum equivalent graph
    )


def completion_passes() -> tuple[Pass, ...]:
    """The passes that come last with all policies."""
    return (
        InsertWaits(),  # after launch order: which waits are implied depends on it
        FreeMemory(),  # last: when memory is safe depends on the waits
    )


def policy_passes(policy: Policy, max_streams: int | None) -> tuple[Pass, ...]:
    """The passes that a policy stands for; arguments as for `passes_for`."""
    if not isinstance(policy, str):
        return (policy,)
    # Order after streams: on one stream the program's order stands.
    return AssignStreams(policy, max_streams), OrderLaunches()


_log = logging.getLogger(__name__)

_GENERATED_FRAMES = {("<string>", "__setattr__"), ("<string>", "__delattr__")}
"""The generated methods in which a frozen dataclass raises, left out of messages."""


CHECKS = "checks between passes"

Observer = Callable[[str], None]
"""Called with the name of each pass when it has returned, and with `CHECKS` after its checks."""


def schedule(
    graph: TaskGraph, pipeline: Sequence[Pass], observe: Observer = lambda _: None
) -> TaskGraph:
    """Runs the passes, checks the graph after each, and adds each to the graph's provenance.

    Args:
        graph: a traced graph, or the result of earlier passes.
        pipeline: the passes, in order.
        observe: called after each pass and after its checks, such as to time them.

    Raises:
        ScheduleError: a pass returned a graph that is not valid; the message says which.
        PassError: a pass raised an exception; the message says which, what and where.
    """
    for step in pipeline:
        try:
            graph = step(graph)
        except NimbleError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            *_, frame = (f for f in frames if (f.filename, f.name) not in _GENERATED_FRAMES)
            what = f"{type(error).__name__}: {error} [{frame.filename}:{frame.lineno}]"
            raise PassError(f"the pass {step.name!r} raised {what}") from error
        observe(step.name)
        try:
            _check(graph)
            provenance = (*graph.provenance, describe_pass(step))
        except ScheduleError as error:
            raise ScheduleError(f"after pass {step.name}: {error}") from error
        except Exception as error:  # an attribute has a type that no check expects
            malformed = f"the graph is malformed: {type(error).__name__}: {error}"
            raise ScheduleError(f"after pass {step.name}: {malformed}") from error
        observe(CHECKS)
        graph = replace(graph, provenance=provenance)
        _log_counts(step, graph)
    return graph


def _log_counts(step: Pass, graph: TaskGraph) -> None:
    if _log.isEnabledFor(logging.DEBUG):  # counting takes as long as some passes
        counts = graph.n_edges, graph.n_streams, graph.n_waits
        what = graph.name, describe_pass(step)
        _log.debug("%s: %s: %d dependencies, %d streams, %d waits", *what, *counts)


def _check(graph: object) -> None:
    """Checks what a pass returned, which a user's pass may get wrong.

    Raises:
        ScheduleError: it is not a TaskGraph, its tasks are not a tuple, or it is not valid.
    """
    if not isinstance(graph, TaskGraph) or type(graph.tasks) is not tuple:
        raise ScheduleError(f"a {type(graph).__name__} is not a TaskGraph with a tuple of tasks")
    verify_structure(graph)
    if graph.urgent is not None or any(task.stream is not None for task in graph.tasks):
        check_placement(graph)


def describe_pass(step: Pass) -> str:
    """The name of the pass and its options on a line: `assign-streams(policy="nimble")`."""
    values = [(field.name, getattr(step, field.name)) for field in fields(step)]  # type: ignore[arg-type]
    options = ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in values)
    line = f"{step.name}({options})" if options else step.name
    return line if line.isprintable() else repr(line)[1:-1]
