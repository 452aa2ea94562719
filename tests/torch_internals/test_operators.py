"""The lists of operators agree with what PyTorch's kernels do."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nimble_fx.torch_internals.operators import is_factory, only_allocates
from nimble_fx.verify import factories

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
