"""Which operators read only metadata: the verifier's list, and the one that others go by."""

from collections.abc import Iterator

import torch

from nimble_fx.torch_internals import operators
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.verify import factories


def aten_operators() -> Iterator[OpOverload]:
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            found = getattr(torch.ops.aten, packet)
            yield getattr(found, overload or "default")


def test_both_lists_have_the_same_operators() -> None:
    found = list(aten_operators())
    assert len(found) > 2000
    differ = [op for op in found if factories.is_factory(op) != operators.is_factory(op)]
    assert differ == []


def test_they_compute_the_same_from_numbers_and_from_nan() -> None:
    """What reads data would return NaN."""
    x = torch.full((2, 3), torch.nan)
    arguments = {"full_like": (1.0,), "new_full": ([2], 1.0), "randint_like": (5,)}
    tried = 0
    for op in filter(factories.is_factory, aten_operators()):
        packet = op.overloadpacket.__name__
        if op._overloadname != "default" or packet.startswith(("empty", "new_empty")):
            continue
        sizes = ([2],) if packet.startswith("new_") else ()
        result = op(x, *arguments.get(packet, sizes))
        assert not result.isnan().any(), op
        tried += 1
    assert tried >= 6
