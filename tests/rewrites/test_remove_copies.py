"""Copies that are only read are removed, and callers cannot notice."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional

import nimble_fx
from nimble_fx.rewrites.remove_copies import remove_copies
from nimble_fx.torch_internals.graph_modules import copied
from nimble_fx.torch_internals.storages import storage_key
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.eager import assert_same
from tests.support.schedules import aten_graph

aten = torch.ops.aten
_NAME = re.compile(r"\bt\d+\b")


def n_copies(gm: GraphModule) -> int:
    return len(gm.graph.find_nodes(op="call_function", target=aten.clone.default))


def rewritten(function: Callable[..., Any], *inputs: Tensor) -> GraphModule:
    gm = remove_copies(aten_graph(function, *inputs, functional=False))
    gm.graph.lint()
    return gm


@st.composite
def with_copies(draw: st.DrawFn) -> AtenProgram:
    """A program in which values are copied, and some are read from the copies."""
    program = draw(aten_programs(max_steps=8))
    lines: list[str] = []
    copies: dict[str, str] = {}

    def either(text: str) -> str:
        """The text with some names replaced by those of copies."""
        return _NAME.sub(lambda m: draw(st.sampled_from([m[0], copies.get(m[0], m[0])])), text)

    for line in program.lines:
        results, equals, call = line.rpartition(" = ")
        lines.append(results + equals + either(call))
        for name in _NAME.findall(results):
            if draw(st.booleans()):
                copies[name] = f"{name}00"
                lines.append(f"{name}00 = torch.clone({name})")
    returns = [either(each) if isinstance(each, str) else each for each in program.returns]
    return replace(program, lines=tuple(lines), returns=tuple(returns))


@given(with_copies(), st.booleans())
def test_nobody_can_tell_the_rewritten_graph_from_the_graph(
    program: AtenProgram, functional: bool
) -> None:
    gm = aten_graph(program.function(), *program.example_inputs(), functional=functional)
    found = []
    for each in (copied(gm), remove_copies(gm)):
        each.graph.lint()
        inputs = program.example_inputs()
        torch.manual_seed(0)
        outputs = each(*inputs)
        found.append([*inputs, *outputs])
    expected, ours = found
    assert_same_bits(ours, expected)
    assert_same_sharing(ours, expected)


@given(st.lists(st.booleans(), max_size=8))
def test_all_copies_that_are_only_read_are_removed(are_copied: list[bool]) -> None:
    def program(x: Tensor) -> Tensor:
        for is_copied in are_copied:
            x = x.sin()
            x = x.clone() if is_copied else x
        return x.t().cos()

    gm = rewritten(program, torch.randn(3, 2))
    assert [node.target for node in gm.graph.nodes if node.op == "call_function"] == [
        *[aten.sin.default] * len(are_copied), aten.t.default, aten.cos.default,
    ]  # fmt: skip


def test_a_view_of_the_copy_lies_in_the_original() -> None:
    """Whoever looks for aliases by fake tensors finds the real ones."""
    gm = rewritten(lambda x: x.relu().clone().t()[1:].sigmoid(), torch.randn(3, 3))
    relu, t, slice_, _ = (node for node in gm.graph.nodes if node.op == "call_function")
    keys = {storage_key(node.meta["val"]) for node in (relu, t, slice_)}
    assert len(keys) == 1


@torch.library.custom_op("nimble_copies::workspace", mutates_args=())
def workspace(x: Tensor) -> Tensor:
    """Its result could be memory that the next call writes to."""
    return x + 1


@workspace.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def updated_later(x: Tensor) -> Tensor:
    y = x.sin()
    return y.clone().sum() + y.slice_scatter(x[1:], 0, 0, 2).sum()


def swapped(x: Tensor) -> Tensor:
    old = x.clone()
    x.copy_(x.flip(0))
    return old.sin()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.clone(),
        lambda x: x.sin().clone()[1:],
        lambda x: x.sin().clone().add_(1).sum(),
        swapped,
        lambda x: x.sin()[1:].clone().cos(),
        lambda x: x.sin()[:, 1:].clone().cos(),
        lambda x: x.sin()[:2].clone().cos(),
        lambda x: x.sum(0).expand(3, 3).clone().sin(),
        lambda x: x.t().clone(memory_format=torch.contiguous_format).sin(),
        lambda x: x.to_sparse().clone().to_dense(),
        lambda x: x.clone().sin(),
        lambda x: x.view(-1).clone().sin(),
        lambda x: workspace(x).clone().sin(),
        lambda x: torch.view_as_real(torch.complex(x, x).conj().clone()).cos(),
        lambda x: torch._neg_view(x.sin()).clone().view(torch.int32) + 1,
        lambda x: x.sin().clone()[1:].slice_scatter(x[1:], 0, 0, 1).sum(),
        updated_later,
    ],
    ids=[
        "returned",
        "a view is returned",
        "written",
        "the original is written",
        "of a part at an offset",
        "of columns",
        "of a part of a temporary",
        "of an expanded tensor",
        "with other strides",
        "without strides",
        "of an input",
        "of a view of an input",
        "of a custom operator's result",
        "of a conjugate",
        "of a negative",
        "updated",
        "the original is updated",
    ],
)
def test_other_copies_stay(program: Callable[..., Any]) -> None:
    assert n_copies(rewritten(program, torch.randn(3, 3))) == 1


class Block(nn.Module):
    """Dropout between and after the layers, as in a transformer."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + functional.dropout(layer(x).relu(), self.p, self.training)
        return x


def test_a_backward_reads_the_copy_of_an_input_that_changes_after_the_forward() -> None:
    """A write through `data` is not counted, so no error would say that gradients are wrong."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w.clone()).tanh()

    gradients = []
    for run in (program, nimble_fx.compile(program, tensors(), training=True)):
        x, w = tensors()
        y = run(x, w)
        w.data.mul_(2)
        gradients.append(torch.autograd.grad(y.sum(), [x, w]))
    assert_same(gradients[1], gradients[0])


def tensors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def test_a_copy_begins_where_its_memory_does_whatever_the_inputs_offset() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.as_strided(x.clone(), (2, 2), (2, 1), 0) * 2

    memory = torch.randn(8)
    compiled = torch.compile(program, backend="nimble")
    with torch.no_grad():
        for x in (memory[:4].clone(), memory[4:]):
            assert_same(compiled(x), program(x))


def kernels(program: nimble_fx.Program) -> list[Any]:
    return [task.target for task in program.graph.tasks]


def test_dropout_costs_nothing_in_eval() -> None:
    model, x = Block(0.5).eval(), torch.randn(2, 4)
    compiled = nimble_fx.compile(model, x, fold_weights=False)
    assert aten.clone.default not in kernels(compiled.programs[0])
    assert_same(compiled(x), model(x).detach())


def test_dropout_of_nothing_costs_nothing_in_training() -> None:
    model, x = Block(0.0), torch.randn(2, 4, requires_grad=True)
    compiled = nimble_fx.compile(model, x, training=True)
    for program in compiled.programs:
        assert aten.clone.default not in kernels(program)
    tensors = [x, *model.parameters()]
    expected, ours = (torch.autograd.grad(run(x).sum(), tensors) for run in (model, compiled))
    assert_same(ours, expected)
