"""The passes in order, each with the reason for its place, and the protocol they follow."""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Protocol

from nimble_fx.errors import NimbleError, PassError, ScheduleError
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.passes.assign_streams import AssignStreams, NamedPolicy
from nimble_fx.passes.chain_bookkeeping import ChainBookkeeping
from nimble_fx.passes.free_memory import FreeMemory
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.passes.order_launches import OrderLaunches
from nimble_fx.passes.reduce_edges import ReduceEdges
from nimble_fx.passes.reinplace_pointwise import ReinplacePointwise
from nimble_fx.verify import verify_structure
from nimble_fx.verify.happens_before import check_placement


class Pass(Protocol):
    """A pure function on task graphs; a frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """What it is called in a graph's provenance."""

    def __call__(self, graph: TaskGraph) -> TaskGraph:
        """A new graph, or the same object if there is nothing to change."""


Policy = NamedPolicy | Pass
"""Which streams tasks run on and in which order they are launched: a name, or a pass that says."""


def passes(policy: Policy, max_streams: int | None) -> tuple[Pass, ...]:
    """The passes that turn a traced graph into a schedule.

    Args:
        policy: a name, or a pass that gives each launching task a stream and may put the tasks in
            another launch order (see `launch_order`).
        max_streams: at most so many streams; it is up to a pass of yours to keep to it.
    """
    return (*preparing(), *streams_and_order(policy, max_streams), *finishing())


def before_policies() -> tuple[Pass, ...]:
    """The passes over a traced graph whose result every policy schedules."""
    return (ReinplacePointwise(),)  # before the search: all candidates have the same tensors


def preparing() -> tuple[Pass, ...]:
    """The passes that all policies begin with."""
    return (
        ChainBookkeeping(),  # first: it adds orders, which the reduction then takes into account
        ReduceEdges(),  # before streams: they follow the edges of the minimum equivalent graph
    )


def finishing() -> tuple[Pass, ...]:
    """The passes that all policies end with."""
    return (
        InsertWaits(),  # after launch order: which waits are implied depends on it
        FreeMemory(),  # last: when memory is safe depends on the waits
    )


def streams_and_order(policy: Policy, max_streams: int | None) -> tuple[Pass, ...]:
    """The passes in which policies differ; arguments as for `passes`."""
    if not isinstance(policy, str):
        return (policy,)
    # Order after streams: on one stream the program's order stands.
    return AssignStreams(policy, max_streams), OrderLaunches()


_log = logging.getLogger(__name__)

_FROZEN = {("<string>", "__setattr__"), ("<string>", "__delattr__")}
"""Where a frozen dataclass refuses a change, which nobody wrote."""


CHECKS = "checks between passes"

Observer = Callable[[str], None]
"""Called with the name of each pass when it has returned, and with `CHECKS` after its checks."""


def schedule(
    graph: TaskGraph, pipeline: Sequence[Pass], observe: Observer = lambda _: None
) -> TaskGraph:
    """Runs the passes, checks the graph after each, and notes them in its provenance.

    Args:
        graph: traced, or scheduled as far as the passes before these do.
        pipeline: the passes, in order.
        observe: called after each pass and after its checks, such as to time them.

    Raises:
        ScheduleError: a pass broke the graph; the message says which.
        PassError: a pass raised something; the message says which, what and where.
    """
    for step in pipeline:
        try:
            graph = step(graph)
        except NimbleError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            *_, frame = (f for f in frames if (f.filename, f.name) not in _FROZEN)
            what = f"{type(error).__name__}: {error} [{frame.filename}:{frame.lineno}]"
            raise PassError(f"pass {step.name} raised {what}") from error
        observe(step.name)
        try:
            _check_kind(graph)
            verify_structure(graph)
            if graph.urgent is not None or any(task.stream is not None for task in graph.tasks):
                check_placement(graph)
        except ScheduleError as error:
            raise ScheduleError(f"after pass {step.name}: {error}") from error
        observe(CHECKS)
        graph = replace(graph, provenance=(*graph.provenance, describe_pass(step)))
        _log_counts(step, graph)
    return graph


def _log_counts(step: Pass, graph: TaskGraph) -> None:
    if _log.isEnabledFor(logging.DEBUG):  # counting takes as long as some passes
        counts = graph.n_edges, graph.n_streams, graph.n_waits
        what = graph.name, describe_pass(step)
        _log.debug("%s: %s: %d orders, %d streams, %d waits", *what, *counts)


def _check_kind(graph: object) -> None:
    """What a pass of the user's own may get wrong, and the next pass takes for granted.

    Raises:
        ScheduleError: it is no graph of a tuple of tasks.
    """
    if not isinstance(graph, TaskGraph) or type(graph.tasks) is not tuple:
        raise ScheduleError(f"a {type(graph).__name__} is no TaskGraph with a tuple of tasks")


def describe_pass(step: Pass) -> str:
    """The pass and its options, as in `assign-streams(policy="nimble")`."""
    values = [(field.name, getattr(step, field.name)) for field in fields(step)]  # type: ignore[arg-type]
    options = ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in values)
    return f"{step.name}({options})" if options else step.name
