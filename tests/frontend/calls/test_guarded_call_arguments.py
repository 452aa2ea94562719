"""Arguments, results and surroundings of calls without Dynamo's frame evaluation."""

import gc
import linecache
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nimble_fx
from nimble_fx.errors import InputError
from nimble_fx.frontend.calls.guarded_call import MAX_ENTRIES
from tests.support.changing_net import DEVICES, Net
from tests.support.eager import assert_same
from tests.support.models import Branchy
from tests.support.without_dynamo import RefusedError, only_direct


def test_keyword_arguments_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    compiled = nimble_fx.compile(net, {"x": x, "others": {"y": [y]}})
    compiled(x=x, others={"y": [y]})
    only_direct(compiled, monkeypatch)
    with torch.no_grad():
        assert_same(compiled(x=y, others={"y": [x]}), net(y, {"y": [x]}))
    with pytest.raises(RefusedError):
        compiled(y, others={"y": [x]})


def folded(x: Tensor, **others: Tensor) -> Tensor:
    """Depends on the order of its keywords."""
    for other in others.values():
        x = x * 2 + other
    return x


class Difference(nn.Module):
    """Depends on the order of its arguments."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y


def in_order(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with arguments by their order, whatever their names."""

    @wraps(function)
    def called(*args: Tensor, **kwargs: Tensor) -> Tensor:
        return function(*args, *kwargs.values())

    return called


class Decorated(Difference):
    """Its forward takes any keywords."""

    forward = in_order(Difference.forward)


class Called(Difference):
    """Has a `__call__` of its own, which takes any keywords."""

    __call__ = in_order(Difference.__call__)


def hooked() -> nn.Module:
    model = Difference()
    model.register_forward_pre_hook(
        lambda _, __, kwargs: ((*kwargs.values(),), {}), with_kwargs=True
    )
    return model


@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize("make", [lambda: folded, Decorated, Called, hooked])
def test_keywords_may_come_in_another_order_where_the_model_sees_it(
    make: Callable[[], Any], guards: bool
) -> None:
    model, (x, y) = make(), torch.randn(2, 4)
    compiled = nimble_fx.compile(model, {"x": x, "y": y}, guards=guards)
    assert torch.equal(compiled(x=x, y=y), model(x=x, y=y))
    if guards or model is folded:
        assert torch.equal(compiled(y=y, x=x), model(y=y, x=x))
    else:
        with pytest.raises(InputError, match=r"keywords y, x, and the example .* keywords x, y"):
            compiled(y=y, x=x)


class Pair(NamedTuple):
    """A container whose items have names."""

    x: Tensor
    y: Tensor


def test_containers_of_other_kinds_may_be_among_the_arguments() -> None:
    x = torch.ones(2)
    compiled = nimble_fx.compile(lambda pair: pair.x + 2 * pair.y, (Pair(x, x + 1),))
    for i in range(3):
        assert compiled(Pair(x, x + i)).tolist() == [3 + 2 * i] * 2


def test_each_of_several_shapes_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Branchy()
    shapes = [torch.randn(rows, 4) for rows in range(1, 1 + MAX_ENTRIES)]
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        compiled = nimble_fx.compile(net, shapes[0])
        for x in shapes:
            compiled(x)
    only_direct(compiled, monkeypatch)
    for x in shapes:
        assert_same(compiled(x), net(x).detach())


def test_a_function_is_called_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(4)
    compiled = nimble_fx.compile(torch.sin, x)
    compiled(x)
    only_direct(compiled, monkeypatch)
    assert torch.equal(compiled(x + 1), torch.sin(x + 1))


class Autocast(nn.Module):
    """Computes in full precision whatever the caller says."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ x


@pytest.mark.parametrize("options", DEVICES, ids=str)
def test_the_autocast_of_the_model_is_that_of_its_calls(options: dict[str, Any]) -> None:
    x = torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = nimble_fx.compile(Autocast(), x, **options)
        assert [compiled(x).dtype for _ in range(3)] == [torch.float32] * 3


class Slow(nn.Module):
    """Takes long enough for another thread to compile meanwhile."""

    def forward(self, x: Tensor, n: int) -> Tensor:
        y = x
        for _ in range(40):
            y = torch.tanh(y @ y)
        return (y * 0 + 1) * n


def test_a_call_goes_by_the_guards_of_what_it_runs_whatever_threads_compile() -> None:
    x = torch.randn(800, 800)
    compiled = nimble_fx.compile(Slow(), (x, 3))

    def call(n: int) -> None:
        with torch.inference_mode():
            compiled(x, n)

    threads = [threading.Thread(target=call, args=(n,)) for n in (3, 5, 6)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    with torch.inference_mode():
        assert [compiled(x, n)[0, 0].item() for n in (3, 5, 6, 7)] == [3, 5, 6, 7]


def passed_on(x: Tensor, past: Any) -> tuple[Tensor, Any]:
    return x + 1, past


@pytest.mark.parametrize("first", [{}, [], (), {"a": torch.ones(1)}, [torch.ones(1)]], ids=str)
def test_an_argument_that_is_returned_or_unused_may_be_any(first: Any) -> None:
    x = torch.ones(2)
    compiled = nimble_fx.compile(passed_on, (x, first))
    unused = nimble_fx.compile(lambda x, past=None: x + 1, (x, first))
    for past in (first, {"a": torch.ones(1)}, {}, None, 5, [x], (x, x)):
        assert compiled(x, past)[1] is past
        assert torch.equal(unused(x, past), x + 1)


def test_modules_among_the_arguments_are_those_of_the_call() -> None:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    x = torch.randn(2, 4)
    compiled = nimble_fx.compile(lambda x, layer: layer(x), (x, layers[0]))
    for layer in (*layers, *layers):
        assert_same(compiled(x, layer), layer(x).detach())


def test_a_weight_that_is_passed_as_an_argument_is_not_mixed_up_with_it() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor, w: Tensor | None = None) -> Tensor:
            return x + self.w

    net, x = Shift(), torch.zeros(2)
    compiled = nimble_fx.compile(net, (x, torch.ones(2)))
    with torch.inference_mode():
        for w in (net.w, net.w, torch.full((2,), 100.0)):
            assert compiled(x, w).tolist() == [1, 1]


def test_shared_parts_of_a_result_are_shared() -> None:
    def program(x: Tensor) -> list[Any]:
        part = [x + 1]
        return [part, {"again": part}]

    compiled = nimble_fx.compile(program, torch.ones(2))
    for _ in range(3):
        first, second = compiled(torch.ones(2))
        assert first is second["again"]


def test_what_the_model_no_longer_has_is_freed() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    compiled(x)
    weight = weakref.ref(net[0].weight)
    net[0] = nn.Linear(4, 3)
    for _ in range(3):
        compiled(x)
    gc.collect()
    assert weight() is None
    text = compiled.programs[-1].file
    assert linecache.getlines(text)
    torch.compiler.reset()
    gc.collect()
    assert not linecache.getlines(text)


def test_a_parameter_in_two_places_is_the_one_that_the_model_reads() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.first.weight = self.second.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(x)
            return result

    net, x = Unused(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    net.first.weight = nn.Parameter(torch.zeros(4, 4))
    assert_same(compiled(x), net(x).detach())


def test_a_stance_a_mode_and_a_trace_are_respected() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    seen: list[bool] = []
    net.register_forward_pre_hook(lambda module, args: seen.append(torch.compiler.is_compiling()))
    with torch.compiler.set_stance("force_eager"):
        compiled(x)
    assert seen == [False]
    with FlopCounterMode(display=False) as flops:
        compiled(x)
    assert flops.get_total_flops() == 2 * (2 * 2 * 4 * 4)
    with pytest.raises(RuntimeError, match=r"jit\.trace"):
        torch.jit.trace(lambda x: compiled(x), x)


def test_a_compiled_model_may_be_part_of_another() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    outer = torch.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_same(outer(x), net(x) + 1)
    with torch.no_grad():
        expected = torch.stack([net(row) for row in x])
    assert_same(torch.vmap(compiled)(x), expected)


def test_a_reset_compiles_again() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    torch.compiler.reset()
    assert compiled.programs == ()
    assert_same(compiled(x), net(x).detach())
    assert len(compiled.programs) == len(compiled._guarded._known) == 1
