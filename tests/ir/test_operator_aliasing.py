"""The declared aliasing of operators equals what running them shows."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import nimble_fx
from nimble_fx.ir.operator_aliasing import UNDECLARED_VIEWS, written_or_returned
from nimble_fx.torch_internals.operators import is_composite

ON_VIRTUAL: dict[str, Any] = {"device": "virtual", "policy": "nimble", "seed": 5}


def put(x: Tensor) -> Tensor:
    moved: Tensor = torch.ops.prims.device_put(x, x.device)
    return moved


def stays(x: Tensor) -> Tensor:
    return torch.relu(put(x))


def is_a_float(x: Tensor) -> Tensor:
    return x.dequantize().relu()


def is_read_elsewhere(x: Tensor) -> tuple[Tensor, Tensor]:
    return put(x).relu(), x.sum()


def is_read_later(x: Tensor) -> Tensor:
    y = x * 2
    return put(y).relu() + y


@pytest.mark.parametrize("options", [{}, ON_VIRTUAL], ids=["cpu", "virtual"])
@pytest.mark.parametrize("program", [stays, is_a_float, is_read_elsewhere, is_read_later])
def test_an_argument_that_an_operator_returns_is_not_written_over(
    program: Callable[[Tensor], Any], options: dict[str, Any]
) -> None:
    x = torch.tensor([-1.0, 2.0])
    compiled = torch.compile(program, backend="nimble", options=options)
    with torch.no_grad():
        for _ in range(3):
            found, expected = compiled(x), program(x)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(x, torch.tensor([-1.0, 2.0]))
    nimble_fx.programs()[-1].verify()


class Unknown(TorchDispatchMode):
    """Notes operators that return their arguments' memory where neither schema nor we say so."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[OpOverload] = set()
        self.n_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.n_calls += 1
        shared = storages(result) & storages((args, kwargs))
        is_known = func in UNDECLARED_VIEWS or is_composite(func)
        is_known |= any(is_returned for *_, is_returned in written_or_returned(func))
        if shared and not is_known:
            self.operators.add(func)
        return result


def storages(values: Any) -> set[int]:
    tensors = [x for x in pytree.tree_leaves(values) if isinstance(x, Tensor)]
    stored = [x for x in tensors if _has_storage(x) and not x.is_nested]
    return {x.untyped_storage()._cdata for x in stored if x.untyped_storage().nbytes()}


def _has_storage(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.layout is torch.strided


@pytest.mark.slow
def test_no_sample_of_pytorchs_shows_an_alias_that_is_not_known() -> None:
    samples = pytest.importorskip(
        "tests.support.samples", reason="PyTorch's tables need expecttest"
    )
    with Unknown() as unknown:
        for name in [name for name in samples.names() if "jiterator" not in name][::15]:
            for sample in islice(samples.samples(name, torch.float32, False), 1):
                if all(map(_has_storage, pytree.tree_leaves((sample.args, sample.kwargs)))):
                    args, kwargs = sample.arguments()
                    sample.call(*args, **kwargs)
    assert unknown.operators == set()
    assert unknown.n_calls > 50


def test_what_is_lifted_is_known_to_alias() -> None:
    with Unknown() as unknown:
        torch.ops.aten.lift(torch.ones(2))
    assert unknown.operators == set()
    assert unknown.n_calls == 2


def test_lists_of_views_are_known_to_alias() -> None:
    x = torch.ones(4, 4)
    with Unknown() as unknown:
        x.split(2), x.split([1, 3]), x.unbind(), x.split_with_sizes([2, 2])
    assert unknown.operators == set()
    assert unknown.n_calls == 4


def test_an_alias_that_nobody_speaks_of_is_noticed() -> None:
    x, found = torch.ones(2), Unknown()
    with found:
        torch.ops.prims.device_put(x, x.device)
    assert found.operators == set()
    lib = torch.library.Library("nimble_aliasing", "FRAGMENT")
    lib.define("same(Tensor x) -> Tensor")
    lib.impl("same", lambda x: x, "CPU")
    with found:
        torch.ops.nimble_aliasing.same(x)
    assert found.operators == {torch.ops.nimble_aliasing.same.default}
