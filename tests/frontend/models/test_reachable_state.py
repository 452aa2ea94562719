"""What a call may change is found wherever it is, and nothing of other packages."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import CellType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.frontend.models.preserve_state import preserve_state
from nimble_fx.frontend.models.reachable_state import reachable_state


class Cache:
    """State that is no module."""

    def __init__(self) -> None:
        self.sum, self.rows, self.calls = torch.zeros(3), deque[Tensor](maxlen=9), 0

    def update(self, x: Tensor) -> Tensor:
        self.sum.add_(x)
        self.rows.append(x)
        self.calls += 1
        return x + self.sum


class WithArgument(nn.Module):
    """Changes an argument."""

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return cache.update(x)


class WithAttribute(nn.Module):
    """Changes an attribute."""

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.cache = cache

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.cache.update(x)
        return result


class WithNested(WithAttribute):
    """Changes an object in a tuple in a namespace."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(SimpleNamespace(update=lambda x: x, of=(cache,)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.cache.of[0].update(x)
        return result


def of_default(cache: Cache) -> Callable[..., Any]:
    def function(x: Tensor, cache: Cache = cache) -> Tensor:
        return cache.update(x)

    return function


def of_keyword_default(cache: Cache) -> Callable[..., Any]:
    def function(x: Tensor, *, cache: Cache = cache) -> Tensor:
        return cache.update(x)

    return function


def of_closure(cache: Cache) -> Callable[..., Any]:
    return lambda x: cache.update(x)


def of_keyword(x: Tensor, cache: Cache) -> Tensor:
    return cache.update(x)


latest: list[Cache] = []


def of_global(cache: Cache) -> Callable[..., Any]:
    def function(x: Tensor) -> Tensor:
        return next(latest[0].update(each) for each in [x])

    latest[:] = [cache]
    return function


HOLDERS: dict[str, Callable[[Cache], Callable[..., Any]]] = {
    "a module's attribute": WithAttribute,
    "a namespace": WithNested,
    "a default": of_default,
    "a keyword's default": of_keyword_default,
    "a closure": of_closure,
    "a global of a generator": of_global,
    "an argument of a partial": lambda cache: partial(Cache.update, cache),
    "a keyword of a partial": lambda cache: partial(of_keyword, cache=cache),
    "a bound method's object": lambda cache: cache.update,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_first_call_after_the_compile_is_eagers_first(holder: str) -> None:
    cache, x = Cache(), torch.ones(3)
    model = HOLDERS[holder](cache)
    compiled = nimble_fx.compile(model, x, on_fallback="silent")
    assert (cache.sum.tolist(), len(cache.rows), cache.calls) == ([0.0] * 3, 0, 0)
    assert torch.equal(compiled(x), HOLDERS[holder](Cache())(x))
    assert cache.calls == 1


def test_a_global_with_the_name_of_an_attribute_is_another_object() -> None:
    latest[:] = [Cache()]
    assert reachable_state(lambda x: x.latest).tensors == []
    assert len(reachable_state(lambda x: latest[0].update(x)).tensors) == 1


def test_so_is_that_with_an_object_as_argument() -> None:
    cache, x = Cache(), torch.ones(3)
    compiled = nimble_fx.compile(WithArgument(), (x, cache), on_fallback="silent")
    assert (cache.sum.tolist(), len(cache.rows), cache.calls) == ([0.0] * 3, 0, 0)
    assert torch.equal(compiled(x, cache), WithArgument()(x, Cache()))


def test_variables_of_closures_are_as_they_were() -> None:
    calls = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * calls

    compiled = nimble_fx.compile(counting, torch.ones(2))
    assert calls == 0
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))


def test_so_is_one_that_has_no_value() -> None:
    cell = CellType()

    def defining(x: Tensor) -> Tensor:
        cell.cell_contents = x
        return x + 1

    with preserve_state(lambda: cell, Arguments((), {})):
        defining(torch.ones(2))
    with pytest.raises(ValueError, match="empty"):
        _ = cell.cell_contents


def test_attributes_of_functions_are_as_they_were() -> None:
    def function(x: Tensor) -> Tensor:
        function.calls += 1  # type: ignore[attr-defined]
        return x + 1

    function.calls = 0  # type: ignore[attr-defined]
    nimble_fx.compile(function, torch.ones(2), on_fallback="silent")
    assert function.calls == 0  # type: ignore[attr-defined]


class Counted(list[Tensor]):
    """A list with an attribute."""

    n_calls = 0


def test_so_are_those_of_containers() -> None:
    rows = Counted()

    def function(x: Tensor) -> Tensor:
        rows.n_calls += 1
        rows.append(x)
        return x + 1

    nimble_fx.compile(function, torch.ones(2), on_fallback="silent")
    assert (len(rows), vars(rows)) == (0, {})


def test_arrays_of_numpy_are_as_they_were() -> None:
    def function(x: Tensor, array: Any) -> Tensor:
        array += 1
        return x + torch.from_numpy(array)

    array, x = torch.zeros(2).numpy(), torch.ones(2)
    compiled = nimble_fx.compile(function, (x, array), on_fallback="silent")
    assert array.tolist() == [0, 0]
    assert compiled(x, array).tolist() == [2, 2]


def test_a_leaf_requires_a_gradient_if_it_did() -> None:
    class Freezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.linear.weight.requires_grad_(False)
            result: Tensor = self.linear(x)
            return result

    model = Freezing()
    nimble_fx.compile(model, torch.ones(1, 2), on_fallback="silent")
    assert model.linear.weight.requires_grad


def test_a_module_among_the_arguments_is_as_it_was_too() -> None:
    norm, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    nimble_fx.compile(lambda x, norm: norm(x), (x, norm))
    assert norm.num_batches_tracked == 0


def test_a_plan_leaves_nothing_in_the_callers_objects() -> None:
    seen, cache = list[Tensor](), Cache()

    def function(x: Tensor) -> Tensor:
        seen.append(x * 2)
        cache.rows.append(x + 1)
        cache.calls += 1
        return x + 1

    nimble_fx.plan(function, torch.ones(3), device="h100")
    assert (seen, len(cache.rows), cache.calls) == ([], 0, 0)


def test_a_plan_leaves_nothing_in_an_argument() -> None:
    class Counted(nn.Module):
        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            cache.rows.append(x * 2)
            cache.calls += 1
            return x + 1

    cache = Cache()
    nimble_fx.plan(Counted(), (torch.ones(3), cache), device="h100")
    assert (len(cache.rows), cache.calls) == (0, 0)


def test_objects_of_other_packages_are_not_looked_into() -> None:
    class Elsewhere(Cache):
        pass

    Elsewhere.__module__ = "trainers.loop"
    trainer, cache = Elsewhere(), Cache()
    model = WithAttribute(cache)
    model.__dict__.update(trainer=trainer, lock=threading.Lock())
    state = reachable_state(model)
    assert any(x is cache.sum for x in state.tensors)
    assert not any(x is trainer.sum for x in state.tensors)
    assert any(x is trainer.sum for x in reachable_state(model, [trainer]).tensors)


def test_objects_that_refer_to_each_other_are_found_once() -> None:
    model, cache = WithAttribute(Cache()), Cache()
    cache.__dict__.update(model=model, itself=cache)
    model.cache = cache
    state = reachable_state(model)
    assert len({*map(id, state.containers)}) == len(state.containers)
    assert [*map(id, state.tensors)] == [id(cache.sum)]


def test_tuples_that_are_shared_are_looked_into_once() -> None:
    """Each level doubles the paths to the list."""
    changed: list[int] = []
    shared: tuple[object, ...] = (changed,)
    for _ in range(64):
        shared = (shared, shared)

    def program() -> object:
        return shared

    found = reachable_state(program)
    assert [each for each in found.containers if each is changed] == [changed]
