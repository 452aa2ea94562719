"""What an inference graph makes twice out of nothing is made once, and nobody can tell."""

from collections.abc import Callable

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.constants import MAX_BYTES, fold_constants
from tests.eager import assert_same

MADE: dict[str, Callable[[], Tensor]] = {
    "integers": lambda: torch.arange(3),
    "floats": lambda: torch.arange(3.0),
    "further": lambda: torch.arange(1, 4),
    "ones": lambda: torch.full((3,), 1),
    "ones in float": lambda: torch.full((3,), 1.0),
    "truths": lambda: torch.full((3,), True),
    "zeros": lambda: torch.zeros(3),
    "minus zeros": lambda: torch.full((3,), -0.0),
    "identity": lambda: torch.eye(3),
}
"""Constructors, no two of which make the same."""


def launched(program: Callable[..., object], *inputs: Tensor) -> list[str]:
    """The operators that the program's compiled form launches; its results must be eager's."""
    torch.compiler.reset()  # to Dynamo the programs of a property are one, compiled too often
    with torch.no_grad():
        assert_same(torch.compile(program, backend="nimble")(*inputs), program(*inputs))
    return [str(task.target) for task in nimble_fx.programs()[-1].graph.launching]


@given(st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=6))
def test_there_are_as_many_constructors_as_different_tensors(names: list[str]) -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [torch.div(x, MADE[name]()) for name in names]

    operators = launched(program, torch.rand(3))
    assert len(operators) == len(names) + len(set(names))


@given(st.lists(st.booleans(), min_size=2, max_size=5))
def test_what_is_returned_is_a_tensor_of_its_own(as_views: list[bool]) -> None:
    def program(x: Tensor) -> list[Tensor]:
        made = [torch.arange(4.0) for _ in as_views]
        inner = x + torch.arange(4.0) + torch.arange(4.0)
        return [inner, *(m[1:] if view else m for m, view in zip(made, as_views, strict=True))]

    operators = launched(program, torch.rand(4))
    assert len(operators) == len(as_views) + 1 + 2
    with torch.no_grad():
        results = torch.compile(program, backend="nimble")(torch.rand(4))
    assert len({result.untyped_storage().data_ptr() for result in results}) == len(results)


@given(st.lists(st.sampled_from(["itself", "part", "item"]), min_size=2, max_size=5))
def test_views_lie_in_what_they_are_views_of(uses: list[str]) -> None:
    def program(x: Tensor) -> Tensor:
        for use in uses:
            made = torch.arange(3.0)
            x = torch.div(
                x, {"itself": made, "part": made[1:].sum(), "item": made.unbind()[1]}[use]
            )
        return x

    launched(program, torch.rand(3))
    nimble_fx.programs()[-1].verify()


def test_two_draws_of_random_numbers_stay_two() -> None:
    def program(x: Tensor) -> Tensor:
        drawn = torch.zeros(64).uniform_() - torch.zeros(64).uniform_()
        return torch.stack([x + torch.rand(64) - torch.rand(64), drawn])

    with torch.no_grad():
        one, other = torch.compile(program, backend="nimble")(torch.zeros(64))
    assert one.count_nonzero() > 32
    assert other.count_nonzero() > 32


def test_what_is_copied_to_an_input_may_be_shared() -> None:
    def program(x: Tensor) -> Tensor:
        y = x + torch.arange(3.0)
        x.copy_(torch.arange(3.0))
        return y

    with torch.no_grad():
        ours, eagers = torch.rand(3), torch.empty(3)
        eagers.copy_(ours)
        assert_same(torch.compile(program, backend="nimble")(ours), program(eagers))
    assert_same(ours, eagers)


def test_what_an_operator_of_somebody_elses_takes_is_a_tensor_of_its_own() -> None:
    """Its schema says that it returns a new one, and it may not.

    The graph is called itself: what PyTorch compiles, it checks for such lies where `CI` is set.
    """
    library = torch.library.Library("make_once_test", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.contiguous(), "CompositeExplicitAutograd")
    library.impl("same", lambda x: torch.empty_like(x), "Meta")

    def program() -> tuple[Tensor, Tensor]:
        same = torch.ops.make_once_test.same
        return same(torch.zeros(4)), same(torch.zeros(4))

    one, other = make_once(make_fx(program, tracing_mode="fake")())()
    one.fill_(5)
    assert not other.any()


def test_a_large_tensor_is_made_where_it_is_used() -> None:
    n = MAX_BYTES // 4

    def program(x: Tensor) -> Tensor:
        return x + torch.ones(n) + torch.ones(n) + torch.ones(n + 1)[1:] + torch.ones(n + 1)[1:]

    assert launched(program, torch.rand(n)).count("aten.ones.default") == 3
