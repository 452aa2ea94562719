"""Hypothesis strategies: DAGs, task graphs, programs. All of them are here."""

from tests.strategies.graphs import SCALAR, dags, task_graphs
from tests.strategies.programs import aten_programs

__all__ = ["SCALAR", "aten_programs", "dags", "task_graphs"]
