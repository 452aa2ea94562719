"""The verifier, an oracle and PyTorch's sanitizer agree on broken schedules."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nimble_fx.codegen.emit import emit
from nimble_fx.ir.task_graph import TaskGraph
from tests.support import sanitizer
from tests.support.corpus import schedules_of_models
from tests.support.judges import (
    Verdict,
    count_text_mutants,
    count_verdicts,
    judge,
    judged,
    oracle_accepts,
    sanitizer_accepts,
    verifier_accepts,
)
from tests.support.mutants import Mutant, mutants
from tests.support.oracle import unsafe_frees
from tests.support.schedules import schedules, traced, waiting_schedules
from tests.support.text_oracle import breaks_an_order

pytestmark = pytest.mark.slow

HARMLESS = {"wait earlier", "free deleted", "free later"}


@cache
def verdicts_on_models() -> tuple[Verdict, ...]:
    return tuple(judged(schedules_of_models(), limit=2))


def without_frees(graph: TaskGraph) -> TaskGraph:
    """A schedule that leaks everything, so that nothing is out of the sanitizer's sight."""
    return graph.replace_tasks(task.updated(frees=()) for task in graph.tasks)


@given(schedules())
def test_the_judges_agree_on_every_schedule_that_the_passes_make(graph: TaskGraph) -> None:
    assert oracle_accepts(graph)
    assert verifier_accepts(graph)
    assert sanitizer_accepts(graph)


@given(waiting_schedules())
def test_the_verifier_refuses_exactly_the_mutants_that_the_oracle_calls_broken(
    graph: TaskGraph,
) -> None:
    for mutant in mutants(graph):
        assert verifier_accepts(mutant.graph) == oracle_accepts(mutant.graph), mutant.description


@given(waiting_schedules())
def test_the_sanitizer_and_the_verifier_agree_on_every_mutant_of_waits_and_streams(
    graph: TaskGraph,
) -> None:
    for mutant in mutants(without_frees(graph)):
        accepted = sanitizer_accepts(mutant.graph)
        assert verifier_accepts(mutant.graph) == accepted, mutant.description


def test_the_judges_agree_on_the_schedules_of_models() -> None:
    for graph in schedules_of_models():
        assert oracle_accepts(graph)
        assert verifier_accepts(graph)
        assert sanitizer_accepts(graph)


def test_the_judges_agree_on_the_mutants_of_models() -> None:
    assert [verdict for verdict in verdicts_on_models() if not verdict.unanimous] == []


def test_each_kind_of_mutant_is_made_of_models_and_only_the_harmless_kinds_never_break() -> None:
    counts = count_verdicts(verdicts_on_models())
    assert [kind for kind, count in counts.items() if not count.made] == []
    assert {kind for kind, count in counts.items() if not count.broken} == HARMLESS


def test_counts_are_those_of_the_verdicts() -> None:
    miss = Verdict("free earlier", "", broken=True, refused=False, visible=False, reported=False)
    alarm = Verdict("free earlier", "", broken=False, refused=True, visible=False, reported=True)
    catch = Verdict("free earlier", "", broken=True, refused=True, visible=True, reported=True)
    count = count_verdicts([miss, alarm, catch, catch])["free earlier"]
    assert (count.made, count.broken, count.caught, count.false_alarms) == (4, 3, 2, 1)
    assert (count.visible, count.seen, count.phantoms) == (2, 2, 1)


def test_mutants_of_a_graph_are_the_same_each_time() -> None:
    def listed(graph: TaskGraph) -> list[tuple[Mutant, tuple[str, ...], tuple[str, ...]]]:
        return [(m, m.graph.forks, m.graph.joins) for m in mutants(graph, limit=4, seed=7)]

    for graph in schedules_of_models():
        assert listed(graph) == listed(replace(graph))


def test_each_mutant_differs_from_the_schedule_that_it_was_made_of() -> None:
    for graph in schedules_of_models():
        for mutant in mutants(graph, limit=4):
            written = (mutant.graph.tasks, mutant.graph.forks, mutant.graph.joins)
            assert written != (graph.tasks, graph.forks, graph.joins), mutant.description
            assert mutant.graph.n_streams == graph.n_streams


def test_each_mutant_can_be_emitted() -> None:
    for graph in schedules_of_models():
        for mutant in mutants(graph, limit=1):
            module = compile(emit(mutant.graph), mutant.description, "exec")
            assert "call" in module.co_names


def test_the_sanitizer_does_not_see_an_early_free_that_the_verifier_refuses() -> None:
    graph = next(g for g in schedules_of_models() if g.name == "Branchy.forward")
    early = [judge(mutant) for mutant in mutants(graph) if mutant.kind == "free earlier"]
    assert early
    assert all(verdict.refused and not verdict.reported for verdict in early)


def test_the_sanitizer_forgets_a_block_that_is_freed() -> None:
    """It is no fault of how it is fed: the block is handed out again while stream 1 reads it."""
    block, handler = 1, sanitizer.event_handler()
    handler._handle_stream_creation(1)
    handler._handle_memory_allocation(block)
    assert not handler._handle_kernel_launch(0, set(), {block}, set(), "make", {block: []})
    handler._handle_event_creation(1)
    handler._handle_event_record(1, 0)
    handler._handle_event_wait(1, 1)
    assert not handler._handle_kernel_launch(1, {block}, set(), set(), "read", {block: []})
    handler._handle_memory_deallocation(block)
    handler._handle_memory_allocation(block)
    assert not handler._handle_kernel_launch(0, set(), {block}, set(), "overwrite", {block: []})


@given(waiting_schedules(), st.integers(0, 99))
def test_a_text_whose_records_or_waits_leave_an_order_open_is_refused(
    graph: TaskGraph, seed: int
) -> None:
    assert not breaks_an_order(emit(graph), graph)
    counts = count_text_mutants([graph], limit=1, seed=seed)
    assert [missed for count in counts.values() for missed in count.missed] == []


def test_texts_of_models_with_a_record_wait_fork_or_join_elsewhere_are_refused() -> None:
    counts = count_text_mutants(schedules_of_models(), limit=1)
    assert [missed for count in counts.values() for missed in count.missed] == []
    assert [kind for kind, count in counts.items() if not count.made] == []
    never = {kind for kind, count in counts.items() if not count.broken}
    assert never == {kind for kind in counts if kind.endswith("doubled")}


def test_the_sanitizer_names_the_caller_where_a_stream_is_not_forked_or_joined() -> None:
    named = set()
    for graph in schedules_of_models():
        for mutant in mutants(graph, limit=1):
            if mutant.kind in ("fork deleted", "join deleted"):
                named |= {name for pair in sanitizer.races(mutant.graph) for name in pair}
    assert named >= {sanitizer.CALL, sanitizer.RETURN}


def test_a_free_is_judged_by_every_access_not_only_by_the_last() -> None:
    def program(x: Tensor) -> Tensor:
        made = torch.exp(x)
        return torch.sigmoid(made) + torch.tanh(made)

    graph = traced(program, torch.randn(2)).graph
    waits = {"sigmoid": ("exp",), "add": ("sigmoid",)}
    early = graph.replace_tasks(
        task.updated(
            stream=int(task.name == "sigmoid"),
            waits=waits.get(task.name, ()),
            frees=("exp",) if task.name == "tanh" else (),
        )
        for task in graph.tasks
    )
    assert unsafe_frees(early) == {"exp"}
    assert not verifier_accepts(early)
    assert verifier_accepts(without_frees(early))
