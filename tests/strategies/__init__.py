"""Hypothesis strategies: DAGs, task graphs, programs, queues. All of them are here."""

from tests.strategies.graphs import (
    SCALAR,
    Given,
    dags,
    given_to_streams,
    task_graphs,
    topological_orders,
)
from tests.strategies.programs import aten_programs

__all__ = [
    "SCALAR",
    "Given",
    "aten_programs",
    "dags",
    "given_to_streams",
    "task_graphs",
    "topological_orders",
]
