"""What can be proved about symbolic sizes, and what becomes a guard."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nimble_fx.torch_internals.symbolic import (
    are_guarded_same,
    are_same_sizes,
    has_unbacked_size,
    is_guarded_same,
    is_same_size,
    known_number,
)


def fake(*shape: int) -> tuple[Tensor, ShapeEnv]:
    shape_env = ShapeEnv()
    return FakeTensorMode(shape_env=shape_env).from_tensor(torch.empty(shape)), shape_env


def test_sizes_are_the_same_where_they_are_so_for_all_values() -> None:
    x, shape_env = fake(6, 7)
    n, m = x.shape
    assert is_same_size(n * (m - 2) + 2 * n, m * n)
    assert is_same_size(torch.sym_max(1, n - 1), n - 1)  # sizes are at least 2
    assert is_same_size((n * m + 1) // 2, (n * m - 1) // 2 + 1)
    assert not is_same_size(n + 1, m)  # in this call alone
    assert not is_same_size(n, 6)
    assert is_same_size(3, 3)
    assert not is_same_size(3, 4)
    assert are_same_sizes([n, 2], [n, 2])
    assert not are_same_sizes([n], [n, 2])
    assert not shape_env.guards


def test_sizes_that_are_the_same_in_a_call_are_guarded() -> None:
    x, shape_env = fake(6, 7)
    n, m = x.shape
    assert is_guarded_same(n, n)
    assert not are_guarded_same([n], [n, n])
    assert not shape_env.guards
    assert is_guarded_same(n + 1, m)
    assert len(shape_env.guards) == 1
    assert is_same_size(n + 1, m)


def test_where_guards_come_too_late_sizes_of_one_call_are_not_the_same() -> None:
    x, shape_env = fake(6, 7)
    shape_env.freeze()
    assert not is_guarded_same(x.shape[0] + 1, x.shape[1])
    assert is_guarded_same(x.shape[0], x.shape[0])


def test_numbers_and_unbacked_sizes_are_known() -> None:
    x, shape_env = fake(6, 7)
    assert known_number(x.shape[0]) is None
    assert known_number(x.shape[0] - x.shape[0] + 3) == 3
    assert known_number(5) == 5
    assert not has_unbacked_size(x)
    assert has_unbacked_size(shape_env.create_unbacked_symint())
