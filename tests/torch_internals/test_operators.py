"""The lists of operators agree with what PyTorch's kernels do."""

from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.torch_internals.leaves import tensors_in
from nimble_fx.torch_internals.operators import (
    copies_whole_storage,
    is_factory,
    only_allocates,
)
from nimble_fx.verify import factories
from tests.support.samples import names, samples

aten = torch.ops.aten
OPERATORS = {
    getattr(getattr(aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("aten::") and not any(each.is_out for each in schema.arguments)
    and torch._C._dispatch_has_kernel(schema.name)
}  # fmt: skip
FACTORIES = sorted(filter(is_factory, OPERATORS), key=str)
REQUIRED: dict[str, Any] = {
    "size": [3, 2],
    "stride": [2, 1],
    "fill_value": 7,
    "low": 2,
    "high": 9,
    "generator": None,
}


def results(operator: Any, x: Tensor) -> Tensor:
    """The operator's result on `x` from one seed, and 0 where it leaves its memory as it is."""
    arguments = [each for each in operator._schema.arguments[1:] if not each.has_default_value()]
    given = {each.name: REQUIRED[each.name] for each in arguments}
    if "Tensor" in operator._overloadname:
        given["high"] = torch.tensor(9)
    torch.manual_seed(0)
    result: Tensor = operator(x, **given)
    return torch.zeros_like(result) if only_allocates(operator) else result


@pytest.mark.parametrize("operator", FACTORIES, ids=str)
def test_factories_read_no_data_of_their_first_argument(operator: Any) -> None:
    x = torch.randn(2, 3)
    assert_close(results(operator, x), results(operator, x * float("nan")), rtol=0, atol=0)


def test_tracer_and_verifier_know_the_same_factories() -> None:
    assert {each for each in OPERATORS if factories.is_factory(each)} == set(FACTORIES)
    assert len(FACTORIES) > 10


@pytest.mark.parametrize("function", [torch.add, aten.add.Tensor, aten.empty, "empty_like"])
def test_nothing_else_is_one(function: Any) -> None:
    assert not is_factory(function)
    assert not only_allocates(function)


class CopiesWithOffsets(TorchDispatchMode):
    """Collects the operators that return new memory with a storage offset."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tensors_in((args, kwargs)) if is_strided(x)}
        for value in filter(is_strided, tensors_in(result)):
            if value.storage_offset() and value.untyped_storage()._cdata not in given:
                self.seen.add(func)
        return result


def is_strided(x: Tensor) -> bool:
    return x.layout is torch.strided


def behind_an_offset(x: Tensor) -> Tensor:
    """The same tensor in a storage that begins before it."""
    if not is_strided(x) or x.numel() == 0:
        return x
    n_elements = x.untyped_storage().nbytes() // x.itemsize
    memory = torch.cat([x.new_zeros(3), x.detach().as_strided((n_elements,), (1,), 0)])
    return memory.as_strided(x.shape, x.stride(), x.storage_offset() + 3)


@pytest.mark.slow
def test_of_pytorchs_samples_only_the_known_operators_copy_what_is_around_an_argument() -> None:
    mode, of = CopiesWithOffsets(), partial(samples, dtype=torch.float32, gradients=False)
    for sample in chain.from_iterable(islice(of(name), 3) for name in names()):
        args, kwargs = pytree.tree_map_only(Tensor, behind_an_offset, (sample.args, sample.kwargs))
        with torch.no_grad(), mode, suppress(Exception):  # of memory that some cannot read
            sample.call(*args, **kwargs)
    assert mode.seen == {each for each in OPERATORS if copies_whole_storage(each)}
    assert len(mode.seen) == 4
