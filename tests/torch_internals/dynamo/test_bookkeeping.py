"""Code without bookkeeping returns the same; graphs that read user objects get them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule, symbolic_trace

import nimble_fx
from nimble_fx.torch_internals.dynamo.bookkeeping import (
    FOR_PROFILERS,
    FOR_USER_OBJECTS,
    reads_user_objects,
    without_bookkeeping,
)
from nimble_fx.torch_internals.dynamo.entries import latest_entry
from tests.support.eager import assert_same

BOOKKEEPING = [*FOR_PROFILERS, *FOR_USER_OBJECTS]


class Module:
    """What code imports: counts the calls of each function."""

    def __init__(self) -> None:
        self.calls = dict.fromkeys([*BOOKKEEPING, "device"], 0)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self.calls:
            raise AttributeError(name)

        def count(*_: object) -> int:
            self.calls[name] += 1
            return self.calls[name]

        return count


@given(st.lists(st.sampled_from([*BOOKKEEPING, "device"]), max_size=6), st.booleans())
def test_only_bookkeeping_that_nothing_reads_is_left_out(
    functions: list[str], user_objects: bool
) -> None:
    lines = [f"    __import_it.{name}()" for name in functions]
    source = "\n".join(["def f(x):", *lines, "    return __compiled_fn_1(x) + other"])
    module = Module()
    scope: dict[str, Any] = {"__import_it": module, "__compiled_fn_1": abs, "other": 1, "no": 2}
    exec(source, scope)
    code = scope["f"].__code__
    trimmed = without_bookkeeping(code, scope, user_objects)
    assert FunctionType(code, trimmed)(-3) == 4
    kept = {"device", *(FOR_USER_OBJECTS if user_objects else ())}
    expected = {name: functions.count(name) * (name in kept) for name in module.calls}
    assert module.calls == expected
    assert "no" not in trimmed


def test_the_code_of_a_call_does_no_bookkeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    called = []
    for name in FOR_PROFILERS:
        monkeypatch.setattr(torch._dynamo.utils, name, lambda *_: called.append(1))
    assert_same(compiled(x), net(x).detach())
    assert called == []


def test_a_graph_reads_user_objects_if_it_looks_them_up_or_has_operators_of_higher_order() -> None:
    def graph(function: Callable[[Tensor], Any]) -> GraphModule:
        found = list[GraphModule]()

        def keep(gm: GraphModule, inputs: object) -> GraphModule:
            found.append(gm)
            return gm

        torch.compile(function, backend=keep)(torch.ones(2))
        return found[0]

    assert not reads_user_objects(graph(lambda x: nn.functional.relu(x) + 1))
    checkpointed = torch.utils.checkpoint.checkpoint
    assert reads_user_objects(graph(lambda x: checkpointed(torch.sin, x, use_reentrant=False)))
    lookup: Any = torch._dynamo.graph_bytecode_inputs.get_external_object_by_index
    looking = symbolic_trace(lambda x: x + 1)
    with looking.graph.inserting_before():
        looking.graph.call_function(lookup, (0,))
    assert reads_user_objects(looking)


def plain(x: Tensor) -> tuple[Tensor, Any]:
    return x + 1, x.device


def returns(x: Tensor) -> tuple[Tensor, Any]:
    return x + 1, torch.cuda.current_stream()


def stream_id(result: Any) -> Any:
    return getattr(result, "stream_id", result)


def waits(x: Tensor) -> tuple[Tensor, Any]:
    event = torch.cuda.current_stream().record_event()
    y = x * 2
    torch.cuda.current_stream().wait_event(event)
    return y, None


@pytest.mark.gpu
@pytest.mark.parametrize("function", [plain, returns, waits])
def test_on_a_gpu_streams_are_those_of_the_call(function: Callable[..., Any]) -> None:
    x = torch.ones(3, device="cuda")
    compiled = nimble_fx.compile(function, x, on_fallback="silent")
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side, torch.cuda.current_stream()):
        nimble_fx.compile(lambda x: x - 1, x)(x)  # another code's objects are in the table
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            (y, other), (expected, others) = compiled(x), function(x)
            assert_same((y, stream_id(other)), (expected, stream_id(others)))
        torch.cuda.current_stream().wait_stream(stream)


def test_an_entry_with_effects_keeps_all_of_its_names() -> None:
    def count(x: Tensor) -> Tensor:
        global N
        N += 1
        return x + 1

    function: Any = count
    torch.compile(function, backend="eager")(torch.ones(2))
    entry = latest_entry(function.__code__)
    assert entry is not None
    code = entry.as_function(function, user_objects=False)
    assert code.__globals__ is function.__globals__


N = 0
