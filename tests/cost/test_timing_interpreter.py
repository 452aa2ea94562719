"""Tasks are timed within their program, from the same values, whatever errors they raise."""

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.cost import timing_interpreter
from nimble_fx.cost.timing_interpreter import GREATEST, LEAST, TimingInterpreter
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph
from nimble_fx.ir.types import TensorType
from tests.support import schedules
from tests.support.cost_graphs import aten, one_task, tensor_type, traced
from tests.support.cost_playing import Clock, program, step
from tests.support.opaque_memory import lstm_backward


def playing(graph: TaskGraph) -> TimingInterpreter:
    made = TimingInterpreter(graph)
    made.warm_up()
    return made


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8))
def test_a_task_takes_its_own_time_and_that_of_the_views_since_the_last_one(
    steps: list[tuple[int, bool]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        tasks = [
            step(f"t{i}", clock.taking(seconds), "x", launches=launches)
            for i, (seconds, launches) in enumerate(steps)
        ]
        seconds = playing(program(tasks)).run()
    ends = [i for i, (_, launches) in enumerate(steps) if launches]
    starts = [0, *(end + 1 for end in ends)]
    assert seconds == {
        f"t{end}": sum(seconds for seconds, _ in steps[start : end + 1])
        for start, end in zip(starts, ends, strict=False)
    }


def test_what_frees_a_value_takes_so_long_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Slow:
        def __del__(self) -> None:
            clock.now += 2.0

    tasks = [step("made", lambda _: Slow(), "x"), step("last", lambda _: None, "made")]
    assert playing(program(tasks)).run() == {"made": 0.0, "last": 2.0}


def test_what_fails_adds_nothing_to_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def raising(_: object) -> None:
        clock.now += 7.0
        raise ValueError("no")

    tasks = [step("bad", raising, "x", launches=False), step("good", clock.taking(1.0), "x")]
    assert playing(program(tasks)).run() == {"good": 1.0}


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
            seen.append({j for j in range(i) if alive[j]() is not None})
            result = Result()
            alive[i] = weakref.ref(result)
            return result

        return call

    tasks = [step(f"t{i}", called(i), *(f"t{j}" for j in each)) for i, each in enumerate(uses)]
    playing(program(tasks, *(f"t{i}" for i in kept))).run()
    expected = [
        {j for j in range(i) if j in kept or any(j in later for later in uses[i:])}
        for i in range(len(uses))
    ]
    assert seen == expected * 2


def test_what_comes_after_a_task_that_raises_gets_a_value_of_its_type() -> None:
    def raising(_: object) -> None:
        raise IndexError("out of range\nof it")

    tasks = [
        Task("bad", raising, (Ref("x"),), type=tensor_type(3), reads=("x",)),
        step("good", torch.neg, "bad"),
        Task("unknown", raising, (Ref("x"),), reads=("x",)),
        step("lost", torch.neg, "unknown"),
    ]
    found = playing(program(tasks))
    assert set(found.failed) == {"bad", "unknown", "lost"}
    assert found.failed["bad"] == found.failed["unknown"] == "IndexError: out of range"
    assert found.failed["lost"].startswith("TypeError")


def test_what_would_crash_is_not_run() -> None:
    found = playing(schedules.traced(lstm_backward, torch.randn(5, 2, 4)).graph)
    (why,) = found.failed.values()
    assert "reads memory in a library's own format" in why


def test_an_interrupt_of_the_caller_is_not_swallowed() -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        playing(program([step("t", interrupted, "x")]))


@pytest.mark.parametrize(
    "unknown",
    [None, tensor_type(1 << 60)],
    ids=["unknown", "too large"],
)
def test_an_input_that_cannot_be_made_fails_the_tasks_that_want_it(
    unknown: TensorType | None,
) -> None:
    tasks = (step("lost", torch.neg, "x"), step("good", torch.neg, "y"))
    given = (Input("x", unknown, ("x",)), Input("y", tensor_type(2), ("y",)))
    assert set(playing(TaskGraph("g", given, (), tasks, ())).failed) == {"lost"}


@pytest.mark.parametrize(("limit", "n_made"), [(12, 1), (24, 2), (30, 3), (1 << 20, 5)])
def test_of_parameters_that_are_alike_no_more_are_made_than_caches_hold(
    limit: int, n_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing_interpreter, "MAX_COLD_NBYTES", limit)
    given = [Input(f"p{i}", tensor_type(3), (f"p{i}",), static=True) for i in range(5)]
    given += [Input(f"x{i}", tensor_type(3), (f"x{i}",)) for i in range(2)]
    seen: list[list[int]] = []

    def called(*tensors: Tensor) -> None:
        seen.append([x.data_ptr() for x in tensors])

    task = step("t", called, *(value.name for value in given))
    playing(TaskGraph("g", tuple(given), (), (task,), ()))
    *parameters, one, other = seen[0]
    assert parameters == [parameters[i % n_made] for i in range(5)]
    assert len({*parameters, one, other}) == n_made + 2


def test_each_run_begins_with_the_same_values() -> None:
    """A counter of positions would run out of its cache, and what shrinks would vanish."""
    graph = traced(CountsPositions(), torch.ones(1, 2))
    found = playing(graph)
    for _ in range(10):
        found.run()
    assert found.failed == {}


class CountsPositions(nn.Module):
    """Writes each input behind the last one in a cache of four."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(4, 2))
        self.n: Tensor
        self.register_buffer("n", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.index_copy_(0, self.n, x)
        self.n.add_(1)
        return self.cache.sum(0)


class Watching(TorchDispatchMode):
    """Notes what operators of a name are given and return."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.calls: list[tuple[Sequence[Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._name in str(func):
            self.calls.append((args, result))
        return result


def test_an_embedding_looks_up_other_rows_in_each_run_and_nobody_else_does() -> None:
    """A list of scores that is shorter than the table would be read out of its range."""
    table, scores = nn.Parameter(torch.ones(1 << 20, 1)), torch.zeros(3)
    graph = traced(lambda i, s: nn.functional.embedding(i, table) + s[i].unsqueeze(1),
                   torch.zeros(50, dtype=torch.int64), scores)  # fmt: skip
    with Watching("aten.embedding") as seen:
        found = playing(graph)
        for _ in range(3):
            found.run()
    rows = [set(args[1].tolist()) for args, _ in seen.calls]
    assert min(map(len, rows)) > 40
    assert max(len(one & other) for one, other in pairwise(rows)) <= 2
    assert found.failed == {}


def layers(*kinds: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(*(kind() for _ in range(30) for kind in kinds)).eval()


def linear(bias: bool) -> nn.Module:
    return nn.Linear(64, 64, bias=bias)


class Gated(nn.Module):
    """A product of two layers: what is small becomes smaller each time."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = linear(bias=False), linear(bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.one(x)) * self.other(x)


class Doubling(nn.Module):
    """A residual connection, of which each doubles what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x


def test_what_grows_without_end_is_cut_back() -> None:
    found = playing(traced(layers(Doubling), torch.ones(8, 64)))
    with Watching("aten.add") as seen:
        found.run()
    assert len(seen.calls) == 30
    assert all(result.abs().max() < 10 * GREATEST for _, result in seen.calls)


@pytest.mark.parametrize(
    "result",
    [torch.full((1,), 1e9).expand(5), torch.zeros(3, dtype=torch.float8_e4m3fn), None, 1e9],
    ids=["expanded", "small floats", "nothing", "a number"],
)
def test_what_cannot_be_written_over_stays_as_it_is(result: Any) -> None:
    playing(program([step("t", lambda _: result, "x")])).run()
    assert not isinstance(result, Tensor) or result.to(torch.float32).unique().numel() == 1


def test_an_input_whose_elements_are_one_number_may_be_said_to_be_written() -> None:
    expanded = TensorType((5,), (0,), torch.float32, torch.device("cpu"))
    task = Task("t", torch.neg, (Ref("x"),), writes=("x",))
    graph = TaskGraph("g", (Input("x", expanded, ("x",)),), (), (task,), ())
    assert set(playing(graph).run()) == {"t"}


@pytest.mark.parametrize(
    "model",
    [
        layers(lambda: linear(bias=True), lambda: nn.BatchNorm1d(64), nn.ReLU),
        layers(lambda: linear(bias=False), nn.ReLU),
        layers(Gated),
        layers(lambda: linear(bias=True), nn.SiLU),
    ],
    ids=["norms", "no bias", "gates", "sigmoids"],
)
def test_what_layers_are_given_neither_vanishes_nor_overflows(model: nn.Module) -> None:
    torch.manual_seed(0)
    graph = traced(model, torch.ones(8, 64))
    with torch.no_grad():
        found = playing(graph)
        with Watching("mm") as seen:
            found.run()
    assert len(seen.calls) >= 30
    for args, _ in seen.calls:
        *_, x, _ = args
        assert LEAST / 10 < x.abs().max() < 10 * GREATEST


def test_slices_lists_and_keywords_are_filled_in() -> None:
    graph = one_task(aten.cat.default, None, tensor_type(2))
    seen: list[Any] = []

    def called(*args: object, **kwargs: object) -> None:
        seen[:] = [*args, kwargs]

    x = Ref("x0")
    task = Task(
        "t", called, ([x, (x, 1)], slice(x, None)), kwargs=(("of", [x]), ("n", 3)), reads=("x0",)
    )
    playing(graph.replace_tasks([task]))
    made = seen[2]["of"][0]
    assert seen == [[made, (made, 1)], slice(made, None), {"of": [made], "n": 3}]
    assert made.shape == (2,)
