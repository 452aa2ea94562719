"""Tasks are timed in their program, in its memory, and whatever they raise."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.cost import in_program
from nimble_fx.cost.in_program import MAX_RUNS, MIN_RUNS, InProgram, measured_in_program
from nimble_fx.cost.work import value_types
from nimble_fx.ir import Input, Ref, Task, TaskGraph
from tests.cost.graphs import aten, one_task, tensor_type, traced


class Clock:
    """Stands still but for what it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step(name: str, called: Callable[..., Any], *uses: str, launches: bool = True) -> Task:
    reads = ("x",) if launches else ()
    return Task(name, called, tuple(map(Ref, uses)), reads=reads, holds=(name,))


def program(tasks: Sequence[Task], *outputs: str) -> TaskGraph:
    given = Input("x", tensor_type(1), ("x",))
    return TaskGraph("g", (given,), (), tuple(tasks), tuple(map(Ref, outputs)))


def measured(graph: TaskGraph) -> InProgram:
    return measured_in_program(graph, value_types(graph))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8))
def test_a_task_takes_its_own_time_and_that_of_the_views_since_the_last_one(
    steps: list[tuple[int, bool]],
) -> None:
    clock = Clock()

    def taking(seconds: int) -> Callable[..., None]:
        def called(*_: object) -> None:
            clock.now += seconds

        return called

    tasks = [
        step(f"t{i}", taking(seconds), "x", launches=launches)
        for i, (seconds, launches) in enumerate(steps)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_program, "perf_counter", clock)
        found = measured(program(tasks))
    ends = [i for i, (_, launches) in enumerate(steps) if launches]
    starts = [0, *(end + 1 for end in ends)]
    assert found.seconds == {
        f"t{end}": sum(seconds for seconds, _ in steps[start : end + 1])
        for start, end in zip(starts, ends, strict=False)
    }


def test_of_several_runs_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seconds = Clock(), iter([9.0, 4.0, 1.0, 2.0, 8.0, 3.0])

    def called(_: object) -> None:
        clock.now += next(seconds)

    monkeypatch.setattr(in_program, "perf_counter", clock)
    assert measured(program([step("t", called, "x")])).seconds == {"t": 3.0}


def test_what_frees_a_value_takes_so_long_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    class Slow:
        def __del__(self) -> None:
            clock.now += 2.0

    monkeypatch.setattr(in_program, "perf_counter", clock)
    tasks = [step("made", lambda _: Slow(), "x"), step("last", lambda _: None, "made")]
    assert measured(program(tasks)).seconds == {"made": 0.0, "last": 2.0}


def test_what_fails_adds_nothing_to_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def called(_: object) -> None:
        clock.now += 1.0

    def raising(_: object) -> None:
        clock.now += 7.0
        raise ValueError("no")

    monkeypatch.setattr(in_program, "perf_counter", clock)
    tasks = [step("bad", raising, "x", launches=False), step("good", called, "x")]
    assert measured(program(tasks)).seconds == {"good": 1.0}


@pytest.mark.parametrize(("seconds", "n_runs"), [(1.0, MIN_RUNS), (0.0, MAX_RUNS), (0.025, 10)])
def test_it_runs_for_about_so_long_but_not_too_often(
    seconds: float, n_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, n_calls = Clock(), 0

    def called(_: object) -> None:
        nonlocal n_calls
        n_calls += 1
        clock.now += seconds or 1e-9

    monkeypatch.setattr(in_program, "perf_counter", clock)
    measured(program([step("t", called, "x")]))
    assert n_calls in (n_runs, n_runs + 1)


class Result:
    """What a weak reference can be to."""


@given(st.lists(st.sets(st.integers(0, 7), max_size=3), min_size=1, max_size=8), st.data())
def test_a_value_lives_until_its_last_use_and_an_output_to_the_end(
    uses: list[set[int]], data: st.DataObject
) -> None:
    uses = [{j for j in each if j < i} for i, each in enumerate(uses)]
    kept = data.draw(st.sets(st.integers(0, len(uses) - 1)))
    alive: dict[int, weakref.ref[Result]] = {}
    seen: list[set[int]] = []

    def called(i: int) -> Callable[..., Result]:
        def call(*_: object) -> Result:
            if i:
                seen.append({j for j in range(i) if alive[j]() is not None})
            result = Result()
            alive[i] = weakref.ref(result)
            return result

        return call

    tasks = [step(f"t{i}", called(i), *(f"t{j}" for j in each)) for i, each in enumerate(uses)]
    measured(program(tasks, *(f"t{i}" for i in kept)))
    expected = [
        {j for j in range(i) if j in kept or any(j in later for later in uses[i:])}
        for i in range(1, len(uses))
    ]
    assert seen[-len(expected) :] == expected or not expected


def test_what_raises_is_left_out_and_what_comes_after_it_is_timed() -> None:
    def raising(_: object) -> None:
        raise IndexError("out of range\nof it")

    tasks = [
        Task("bad", raising, (Ref("x"),), type=tensor_type(3), reads=("x",)),
        step("good", torch.neg, "bad"),
        Task("unknown", raising, (Ref("x"),), reads=("x",)),
        step("lost", torch.neg, "unknown"),
    ]
    found = measured(program(tasks))
    assert set(found.seconds) == {"good"}
    assert found.failed["bad"] == found.failed["unknown"] == "IndexError: out of range"
    assert found.failed["lost"].startswith("TypeError")


def test_an_interrupt_of_the_caller_is_not_swallowed() -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(program([step("t", interrupted, "x")]))


def test_an_input_of_which_nothing_is_known_fails_the_tasks_that_want_it() -> None:
    graph = TaskGraph("g", (Input("x", None, ("x",)),), (), (step("t", torch.neg, "x"),), ())
    assert set(measured(graph).failed) == {"t"}


@pytest.mark.parametrize(("limit", "n_made"), [(12, 1), (24, 2), (30, 3), (1 << 20, 5)])
def test_of_parameters_that_are_alike_no_more_are_made_than_caches_hold(
    limit: int, n_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_program, "MAX_COLD_NBYTES", limit)
    given = [Input(f"p{i}", tensor_type(3), (f"p{i}",), static=True) for i in range(5)]
    given += [Input(f"x{i}", tensor_type(3), (f"x{i}",)) for i in range(2)]
    seen: list[list[int]] = []

    def called(*tensors: torch.Tensor) -> None:
        seen.append([x.data_ptr() for x in tensors])

    task = step("t", called, *(value.name for value in given))
    measured(TaskGraph("g", tuple(given), (), (task,), ()))
    *parameters, one, other = seen[0]
    assert parameters == [parameters[i % n_made] for i in range(5)]
    assert len({*parameters, one, other}) == n_made + 2


class Watching(TorchDispatchMode):
    """Notes what operators are given and return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Sequence[Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((str(func), args, result))
        return result


def test_an_embedding_looks_up_other_rows_in_each_run() -> None:
    graph = traced(nn.Embedding(1 << 20, 1), torch.arange(50))
    with Watching() as seen:
        measured(graph)
    looked_up = [args for name, args, _ in seen.calls if name == "aten.embedding.default"]
    assert len(looked_up) > MIN_RUNS
    indices = next(iter(looked_up))[1]
    n_drawn = sum(name.startswith("aten.random_") for name, _, _ in seen.calls)
    assert n_drawn == len(looked_up)
    assert indices.unique().numel() > 40


def test_what_is_computed_of_made_up_values_neither_vanishes_nor_overflows() -> None:
    """A CPU is slow with numbers that are nearly zero."""
    torch.manual_seed(0)
    layers = [(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(30)]
    graph = traced(nn.Sequential(*(each for layer in layers for each in layer)).eval(),
                   torch.ones(8, 64))  # fmt: skip
    with torch.no_grad(), Watching() as seen:
        measured(graph)
    results = [result for name, _, result in seen.calls if name.startswith("aten.addmm")]
    assert len(results) >= 30 * MIN_RUNS
    assert all(1e-20 < result.abs().max() < 1e20 for result in results)


def test_slices_lists_and_keywords_are_filled_in() -> None:
    graph = one_task(aten.cat.default, None, tensor_type(2))
    seen: list[object] = []

    def called(*args: object, **kwargs: object) -> None:
        seen.extend([*args, kwargs])

    x = Ref("x0")
    task = Task(
        "t", called, ([x, (x, 1)], slice(x, None)), kwargs=(("of", [x]), ("n", 3)), reads=("x0",)
    )
    measured(graph.replace_tasks([task]))
    made = seen[2]["of"][0]  # type: ignore[index]
    assert seen[:3] == [[made, (made, 1)], slice(made, None), {"of": [made], "n": 3}]
    assert made.shape == (2,)
