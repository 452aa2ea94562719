"""A compiled graph runs its program directly where AOTAutograd only calls it, and only there."""

from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.runtime.compiled_graph import CompiledGraph, WatchedProgram
from nimble_fx.torch_internals.dynamo.boxed import Boxed, boxed
from tests.support.eager import assert_same

Values = Sequence[Any]
Aot = Callable[[Callable[[list[Any]], Values], Values], Values]
"""Stands for AOTAutograd: takes the program and the arguments of a call."""


@boxed
def doubled(args: list[Any]) -> Values:
    """A program that returns as many new tensors as it takes."""
    outputs = [2 * value for value in args]
    args.clear()
    return outputs


@boxed
def squared(args: list[Any]) -> Values:
    """A program that autocast and gradients would change."""
    return [args[0] @ args[0]]


def calls_it(program: Callable[[list[Any]], Values], args: Values) -> Values:
    """AOTAutograd, when it only calls the program."""
    return program(list(args))


class Graph:
    """A compiled graph, and how many of its calls AOTAutograd makes."""

    def __init__(self, program: Boxed = doubled, aot: Aot = calls_it) -> None:
        self.watched, self.n_calls, self.aot = WatchedProgram(program), 0, aot
        self.compiled = CompiledGraph(self._run, self.watched)

    def _run(self, *args: Any) -> Values:
        self.n_calls += 1
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return self.aot(self.watched.run, args)


X, Y = torch.tensor([1.0]), torch.tensor([2.0])

DOES_MORE: dict[str, Aot] = {
    "copies an argument": lambda program, args: program([args[0].clone(), *args[1:]]),
    "views an argument": lambda program, args: program([args[0].view(1), *args[1:]]),
    "passes fewer": lambda program, args: program(list(args[1:])),
    "passes more": lambda program, args: program([*args, args[0]])[:2],
    "passes another order": lambda program, args: program(list(args[::-1])),
    "passes another number": lambda program, args: program([*args[:-1], float(args[-1])]),
    "views a result": lambda program, args: [program(list(args))[0].view(1)],
    "drops a result": lambda program, args: program(list(args))[1:],
    "returns another order": lambda program, args: program(list(args))[::-1],
    "returns an argument": lambda program, args: [args[0], *program(list(args))[1:]],
    "calls twice": lambda program, args: (program(list(args)), program(list(args)))[1],
    "does not call": lambda program, args: [2 * value for value in args],
}


@pytest.fixture
def no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.usefixtures("no_gradients")
def test_all_calls_but_the_first_run_the_program_directly() -> None:
    graph = Graph()
    for n in (1, 2, 3):
        assert_same(list(graph.compiled(X * n, Y, 3)), [2 * X * n, 2 * Y, 6])
    assert graph.n_calls == 1
    assert (graph.compiled.program, graph.compiled.n_outputs) == (doubled, 3)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("what", DOES_MORE)
def test_where_autograd_does_more_it_makes_all_calls(what: str) -> None:
    graph = Graph(aot=DOES_MORE[what])
    for n in (1, 2, 3):
        args = (X * n, Y, 3)
        expected = DOES_MORE[what](doubled, args)
        assert_same(list(graph.compiled(*args)), list(expected))
    assert graph.n_calls == 3
    assert graph.compiled.program is None


def test_what_autograd_switches_off_is_off_in_each_call() -> None:
    graph, weight = Graph(squared), torch.nn.Parameter(torch.ones(2, 2))
    for _ in range(3):
        with torch.no_grad():
            graph.compiled(weight)
            with torch.autocast("cpu", torch.bfloat16):
                assert graph.compiled(weight)[0].dtype == torch.float32
        with torch.enable_grad():
            assert not graph.compiled(weight)[0].requires_grad
    assert graph.n_calls == 1 + 2 * 3


@pytest.mark.usefixtures("no_gradients")
def test_after_an_error_in_the_first_call_the_next_one_counts_as_first() -> None:
    graph, fails = Graph(), [True]

    def aot(program: Callable[[list[Any]], Values], args: Values) -> Values:
        results = program(list(args))
        if fails.pop():
            raise RuntimeError("out of memory")
        return results

    graph.aot = aot
    with pytest.raises(RuntimeError, match="out of memory"):
        graph.compiled(X)
    fails += [False, False]
    for _ in range(3):
        assert_same(list(graph.compiled(X)), [2 * X])
    assert graph.n_calls == 2


def test_a_thread_sees_its_own_calls() -> None:
    watched, begun, done = WatchedProgram(doubled), Event(), Event()
    seen = []

    def slow(x: Tensor) -> None:
        begun.set()
        done.wait(10)
        watched.run([x])

    thread = Thread(target=lambda: seen.extend(watched.watch(slow, [Y])[1]))
    thread.start()
    assert begun.wait(10)
    _, calls = watched.watch(watched.run, [[X, X]])
    done.set()
    thread.join()
    watched.run([X])
    assert [list(inputs) for inputs, _ in calls] == [[X, X]]
    assert [list(inputs) for inputs, _ in seen] == [[Y]]


def test_a_call_inside_of_a_watched_call_is_not_the_outer_ones() -> None:
    graph = Graph()

    def aot(program: Callable[[list[Any]], Values], args: Values) -> Values:
        if args[0] is X:
            graph.compiled(Y)
        return program(list(args))

    graph.aot = aot
    with torch.no_grad():
        assert_same(list(graph.compiled(X)), [2 * X])
    assert graph.compiled.program is doubled


class Affine(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.two(self.one(x).relu())
        return result


def test_with_the_backend_calls_in_inference_leave_autograd_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = list[CompiledGraph]()

    def made(run: Callable[..., Any], watched: WatchedProgram) -> CompiledGraph:
        graphs.append(CompiledGraph(run, watched))
        return graphs[-1]

    monkeypatch.setattr("nimble_fx.compiler.CompiledGraph", made)
    model, x = Affine(), torch.randn(2, 3)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        for _ in range(2):
            assert_same(compiled(x), model(x))
    (graph,) = graphs
    assert graph.program is not None
    assert_same(compiled(x), model(x))  # with gradients, a training graph
    assert graphs == [graph]


@pytest.mark.parametrize("how", [torch.compile, nimble_fx.compile])
def test_the_marks_of_dynamic_dimensions_are_on_the_results_of_each_call(how: Any) -> None:
    x = torch.randn(5, 3)
    torch._dynamo.mark_dynamic(x, 0)
    if how is torch.compile:
        compiled = torch.compile(lambda x: x * 2, backend="nimble")
    else:
        compiled = nimble_fx.compile(lambda x: x * 2, x)
    eagerly = torch.compile(lambda x: x * 2, backend="aot_eager")
    with torch.no_grad():
        expected = vars(eagerly(x))
        assert expected
        assert [vars(compiled(x)) for _ in range(3)] == [expected] * 3
