"""Programs in the shape of a DAG in which any wrong number shows, and their broken schedules."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nimble_fx.ir.bitset_dag import Rows, bits
from tests.support.mutants import Mutant, mutants
from tests.support.oracle import is_legal
from tests.support.playing import first_wrong_order, on_cpu
from tests.support.schedules import scheduled, traced

_N_CAPTURES = 12
"""Where the inputs' memory lies makes a difference: the caller's stream or a side stream's."""

BREAKING = ("wait deleted", "wait later", "free earlier")


def sums(rows: Rows) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A program in the shape of a DAG: each vertex adds up those before it; sinks are returned.

    A number that is wrong anywhere shows in a result.
    """
    before = {v: [u for u, row in enumerate(rows) if row >> v & 1] for v in range(len(rows))}

    def program(x: Tensor) -> tuple[Tensor, ...]:
        values: list[Tensor] = []
        for v in range(len(rows)):
            values.append(torch.cat([values[u] for u in before[v]] or [x]).sum(0, keepdim=True))
        return tuple(value for value, row in zip(values, rows, strict=True) if not any(bits(row)))

    return program


def broken_sums(rows: Rows, limit: int, n_orders: int) -> Iterator[tuple[Mutant, int | None]]:
    """Schedules of a sum that lost a wait or free a value too early: each with what it comes to.

    That is the number of orders on the virtual device until a result is wrong; None if none is.

    Args:
        rows: the DAG.
        limit: how many schedules of each kind.
        n_orders: how many orders to try.
    """
    x = torch.arange(1.0, 5.0).unsqueeze(0)
    result = traced(sums(rows), x)
    graph = scheduled(result.graph)
    left = on_cpu(graph, result.constants, [x])
    for mutant in mutants(graph, limit):
        if mutant.kind in BREAKING and not is_legal(mutant.graph):
            played = mutant.graph, result.constants, [x], left
            yield mutant, first_wrong_order(*played, n_orders, n_captures=_N_CAPTURES)
