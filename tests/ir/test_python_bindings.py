"""Operators are only called by torch's binding if PyTorch shows that both are the same.

The judge is PyTorch itself: both ways run on the same arguments, and what they hand to the
dispatcher, and return, must be equal to the bit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nimble_fx.codegen.emit import callee_text
from nimble_fx.ir.python_bindings import SAME_BY_BINDING, binding, fastest_binding
from tests.support.bits import assert_same_bits

aten = torch.ops.aten
Arguments = tuple[Any, ...]


def numbers(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) + 0.5


def indices(*shape: int) -> Tensor:
    return torch.arange(2).repeat(shape[-1])[: shape[-1]].expand(shape).contiguous()


IMAGE = (2, 4, 5, 5)
CALLS: dict[str, Callable[[], Arguments]] = {
    "_adaptive_avg_pool2d": lambda: (numbers(*IMAGE), [2, 3]),
    "_embedding_bag": lambda: (
        *(numbers(3, 4), indices(6), torch.tensor([0, 2]), True, 0, True, numbers(6), True, 1),
    ),
    "_embedding_bag_forward_only": lambda: (
        *(numbers(3, 4), indices(6), torch.tensor([0, 2]), True, 0, True, numbers(6), True, 1),
    ),
    "_log_softmax": lambda: (numbers(2, 3), 1, False),
    "_log_softmax_backward_data": lambda: (numbers(2, 3), numbers(2, 3), 1, torch.float32),
    "_native_batch_norm_legit_no_training": lambda: (
        *(numbers(*IMAGE), numbers(4), numbers(4), numbers(4), numbers(4), 0.2, 1e-3),
    ),
    "_softmax": lambda: (numbers(2, 3), 1, False),
    "_softmax_backward_data": lambda: (numbers(2, 3), numbers(2, 3), 1, torch.float32),
    "addmm": lambda: (numbers(4), numbers(3, 2), numbers(2, 4)),
    "amax": lambda: (numbers(2, 3), [1], True),
    "amin": lambda: (numbers(2, 3), [1], True),
    "as_strided": lambda: (numbers(2, 3), [2, 2], [1, 2], 1),
    "bmm": lambda: (numbers(2, 3, 4), numbers(2, 4, 5)),
    "cat": lambda: ([numbers(2, 3), numbers(2, 3)], 1),
    "constant_pad_nd": lambda: (numbers(2, 3), [1, 0], 7),
    "convolution": lambda: (
        *(numbers(*IMAGE), numbers(6, 2, 3, 3), numbers(6)),
        *([2, 1], [1, 0], [1, 1], False, [0, 0], 2),
    ),
    "cumsum": lambda: (numbers(2, 3), 1),
    "embedding": lambda: (numbers(3, 4), indices(2, 5), 1, True, False),
    "gather": lambda: (numbers(2, 3), 1, indices(2, 2)),
    "index_select": lambda: (numbers(2, 3), 1, indices(2)),
    "logical_not": lambda: (indices(2, 3),),
    "maximum": lambda: (numbers(2, 3), numbers(3)),
    "minimum": lambda: (numbers(2, 3), numbers(3)),
    "mm": lambda: (numbers(2, 3), numbers(3, 2)),
    "native_dropout": lambda: (numbers(2, 3), 0.5, True),
    "native_group_norm": lambda: (numbers(*IMAGE), numbers(4), numbers(4), 2, 4, 25, 2, 1e-3),
    "native_layer_norm": lambda: (numbers(2, 3), [3], numbers(3), numbers(3), 1e-3),
    "permute": lambda: (numbers(2, 3, 4), [2, 0, 1]),
    "stack": lambda: ([numbers(2, 3), numbers(2, 3)], 1),
    "tril": lambda: (numbers(2, 3), 1),
    "triu": lambda: (numbers(2, 3), 1),
    "unsqueeze": lambda: (numbers(2, 3), 1),
}
"""Arguments for each parameter that is positional; of the others a matrix alone."""

KEYWORDS: dict[str, dict[str, Any]] = {
    "addmm": {"beta": 2, "alpha": 0.5},
    "clone": {"memory_format": torch.contiguous_format},
    "cumsum": {"dtype": torch.float64},
    "gather": {"sparse_grad": True},
}
"""Arguments for parameters that are given by name."""

DIFFERENT: dict[str, Callable[[], Arguments]] = {
    "binary_cross_entropy_with_logits": lambda: (numbers(2, 3), numbers(2, 3)),
    "cosine_embedding_loss": lambda: (numbers(2, 3), numbers(2, 3), torch.tensor([1, -1])),
    "hinge_embedding_loss": lambda: (numbers(2, 3), torch.tensor([1, -1, 1])),
    "kl_div": lambda: (numbers(2, 3), numbers(2, 3)),
    "margin_ranking_loss": lambda: (numbers(2, 3), numbers(2, 3), torch.tensor([1, -1, 1])),
    "triplet_margin_loss": lambda: (numbers(2, 3), numbers(2, 3), numbers(2, 3)),
}
"""Losses whose binding reduces by another default than their schema."""


class Seen(TorchDispatchMode):
    """Notes what reaches the dispatcher: operators with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves, form = pytree.tree_flatten((args, kwargs or {}))
        shown = [repr(leaf) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves]
        self.calls.append((func, (shown, str(form))))
        return func(*args, **(kwargs or {}))


def called_by(function: Callable[..., Any], args: Arguments, kwargs: dict[str, Any]) -> Any:
    """What a function hands to the dispatcher, returns, and leaves of its arguments."""
    args = pytree.tree_map_only(Tensor, torch.clone, args)
    torch.manual_seed(0)
    with Seen() as seen:
        result = function(*args, **kwargs)
    return seen.calls, result, args


def forms(op: OpOverload, args: Arguments, kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments with ever more of those left out that have a default."""
    has_default = {p.name: p.has_default_value() for p in op._schema.arguments}
    positional = [p.name for p in op._schema.arguments if not p.kwarg_only]
    least = sum(not has_default[name] for name in positional)
    for n in range(least, len(args) + 1):
        yield args[:n], kwargs
        yield args[:n], {}
        for name in kwargs:
            yield args[:n], {name: kwargs[name]}


def assert_the_same(
    op: OpOverload, function: Callable[..., Any], args: Arguments, kwargs: Any
) -> None:
    for given, named in forms(op, args, kwargs):
        calls, result, left = called_by(op, given, named)
        other_calls, other_result, other_left = called_by(function, given, named)
        assert calls == other_calls
        assert_same_bits([result, left], [other_result, other_left])


def listed() -> list[str]:
    return sorted(SAME_BY_BINDING)


@pytest.mark.parametrize("name", listed())
def test_a_listed_binding_is_the_operator_whatever_is_left_out(name: str) -> None:
    op = getattr(aten, name).default
    function = getattr(torch, name)
    args = CALLS.get(name, lambda: (numbers(2, 3),))()
    assert_the_same(op, function, args, KEYWORDS.get(name, {}))


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_binding_with_another_default_is_told_apart_and_not_listed(name: str) -> None:
    op = getattr(aten, name).default
    with pytest.raises(AssertionError):
        assert_the_same(op, getattr(torch, name), DIFFERENT[name](), {})
    assert binding(op) is None
    assert fastest_binding(op) is op.op


def every_operator() -> Iterator[OpOverload]:
    """All that PyTorch's dispatcher knows."""
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        op = getattr(found, overload or "default", None)
        if isinstance(op, OpOverload):
            yield op


def test_of_all_operators_only_the_listed_are_called_otherwise_than_by_their_overload() -> None:
    operators = list(every_operator())
    assert len(operators) > 3000
    others = {op for op in operators if fastest_binding(op) is not op.op}
    assert others == {op for op in operators if binding(op) is not None}
    assert {op._schema.name.removeprefix("aten::") for op in others} <= SAME_BY_BINDING
    for op in operators:
        assert callee_text(op).removeprefix("torch.ops.") == str(op)


def test_losses_are_reduced_by_default_as_in_eager() -> None:
    x, target = numbers(4, 2).log(), numbers(4, 2)
    for loss in (torch.nn.BCEWithLogitsLoss(), torch.nn.KLDivLoss(), torch.nn.HingeEmbeddingLoss()):
        for device in (None, "virtual"):
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            options: dict[str, Any] = {"device": device}
            compiled = torch.compile(loss, backend="nimble", options=options)
            expected, found = loss(inputs[0], target), compiled(inputs[1], target)
            torch.testing.assert_close(found, expected)
            for value in (expected, found):
                value.backward()
            torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
