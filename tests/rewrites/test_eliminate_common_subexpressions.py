"""Common subexpressions are computed once, and callers cannot notice."""

import re
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional

import nimble_fx
from nimble_fx.rewrites.eliminate_common_subexpressions import eliminate_common_subexpressions
from nimble_fx.torch_internals.graph_modules import copied
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.schedules import aten_graph

aten = torch.ops.aten
_NAME = re.compile(r"\bt\d+\b")


def operators(gm: GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def rewritten(function: Callable[..., Any], *inputs: Tensor) -> GraphModule:
    gm = eliminate_common_subexpressions(aten_graph(function, *inputs))
    gm.graph.lint()
    return gm


@st.composite
def repetitive(draw: st.DrawFn) -> AtenProgram:
    """A program in which statements are there twice, the second time under another name."""
    program = draw(aten_programs(max_steps=8))
    lines: list[str] = []
    twins: dict[str, str] = {}
    returns: list[Any] = []

    def either(text: str) -> str:
        """The text with some names replaced by those of twins."""
        return _NAME.sub(lambda m: draw(st.sampled_from([m[0], twins.get(m[0], m[0])])), text)

    for line in program.lines:
        results, equals, call = line.rpartition(" = ")
        call = either(call)
        lines.append(results + equals + call)
        if draw(st.booleans()):
            second = _NAME.sub(lambda m: f"{m[0]}00", results)
            twins |= dict(zip(_NAME.findall(results), _NAME.findall(second), strict=True))
            lines.append(second + equals + call)
    for value in program.returns:
        returns += [value, twins.get(value, value)] if isinstance(value, str) else [value]
    return replace(program, lines=tuple(lines), returns=tuple(returns))


@given(repetitive(), st.booleans())
def test_nobody_can_tell_the_rewritten_graph_from_the_graph(
    program: AtenProgram, functional: bool
) -> None:
    gm = aten_graph(program.function(), *program.example_inputs(), functional=functional)
    found = []
    for each in (copied(gm), eliminate_common_subexpressions(gm)):
        each.graph.lint()
        inputs = program.example_inputs()
        torch.manual_seed(0)
        outputs = each(*inputs)
        found.append(([*inputs, *outputs], torch.get_rng_state()))
    (expected, state), (ours, our_state) = found
    assert_same_bits(ours, expected)
    assert_same_sharing(ours, expected)
    assert torch.equal(state, our_state)


UNARY = (aten.relu.default, aten.sigmoid.default, aten.neg.default)


@given(st.data())
def test_each_distinct_expression_is_computed_once(data: st.DataObject) -> None:
    """Expressions as nested tuples are the oracle."""
    steps = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12))

    def program(large: Tensor, x: Tensor) -> Tensor:
        values = [x]
        for operator, operand in steps:
            values.append(UNARY[operator](values[operand % len(values)]))
        return torch.cat([large.sum().view(1), *values])

    expressions: list[Hashable] = ["x"]
    for operator, operand in steps:
        expressions.append((operator, expressions[operand % len(expressions)]))
    gm = rewritten(program, torch.randn(1000), torch.randn(3))
    assert len(operators(gm)) == len({*expressions[1:]}) + 3


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (2, 2.0), (1, True), (1.0, 1), (2.0, 2.0 + 2**-51)]
)
def test_arguments_that_are_equal_but_not_the_same_make_two(one: Any, other: Any) -> None:
    gm = rewritten(lambda x: torch.mul(x, one) + torch.mul(x, other), torch.randn(3))
    assert operators(gm) == [aten.mul.Tensor, aten.mul.Tensor, aten.add.Tensor]
    gm = rewritten(lambda x: torch.mul(x, one) + torch.mul(x, one), torch.randn(3))
    assert operators(gm) == [aten.mul.Tensor, aten.add.Tensor]


def test_arguments_at_other_places_make_two() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.addmm(x, x, x, alpha=2) + torch.addmm(x, x, x, beta=2)

    assert operators(rewritten(program, torch.randn(3, 3))).count(aten.addmm.default) == 2


def written_between(x: Tensor) -> Tensor:
    view = x.t()
    one = view.relu()
    x.add_(1)
    return one + view.relu()


def test_results_in_pieces_are_shared_piece_by_piece() -> None:
    def program(x: Tensor) -> Tensor:
        (a, i), (b, j) = (functional.max_pool2d(x, 2, return_indices=True) for _ in range(2))
        return a + b + i + j

    gm = rewritten(program, torch.randn(1, 2, 4, 4))
    assert operators(gm).count(aten.max_pool2d_with_indices.default) == 1
    assert len(operators(gm)) == 6


def test_a_view_of_the_second_lies_in_the_first() -> None:
    """Whoever looks for aliases by fake tensors finds the real ones."""

    def program(x: Tensor) -> Tensor:
        a, b = x.relu(), x.relu()
        return a.sum() + b[1:].t().sigmoid().sum()

    gm = rewritten(program, torch.randn(3, 3))
    (relu,) = gm.graph.find_nodes(op="call_function", target=aten.relu.default)
    views = [n for n in gm.graph.nodes if n.target in (aten.slice.Tensor, aten.t.default)]
    assert views
    for node in views:
        assert storage(node) == storage(relu)


def storage(node: Node) -> Any:
    return node.meta["val"].untyped_storage()._cdata


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.relu(), x.relu()),
        lambda x: (x.relu()[1:], x.relu()[1:]),
        lambda x: x.relu().add_(1) + x.relu(),
        written_between,
        lambda x: torch.rand_like(x) - torch.rand_like(x),
        lambda x: functional.dropout(x) - functional.dropout(x),
        lambda x: x.nonzero().sum() + x.nonzero().sum(),
    ],
    ids=[
        "returned",
        "a view is returned",
        "written",
        "written between",
        "random",
        "dropout",
        "of unknown size",
    ],
)
def test_what_somebody_could_tell_apart_stays(program: Callable[..., Any]) -> None:
    gm = aten_graph(program, torch.randn(3, 3), functional=False)
    n = len(operators(gm))
    assert len(operators(eliminate_common_subexpressions(gm))) == n


def test_what_is_too_large_to_be_kept_is_computed_again() -> None:
    """As where logits are computed by chunks of a vocabulary, for their maximum and their sum."""

    def program(x: Tensor, chunks: Tensor) -> Tensor:
        top = torch.stack([(x @ chunk).amax() for chunk in chunks.unbind()]).amax()
        return torch.stack([(x @ chunk - top).exp().sum() for chunk in chunks.unbind()]).sum()

    inputs = torch.randn(64, 2), torch.randn(8, 2, 64)
    gm = rewritten(program, *inputs)
    assert operators(gm).count(aten.unbind.int) == 1
    assert operators(gm).count(aten.mm.default) >= 14
    assert torch.equal(gm(*inputs), program(*inputs))


def test_an_operator_that_returns_nothing_does_something() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(2):
            aten._assert_async.msg(x.sum(), "no sum")
        return x + 1

    targets = operators(rewritten(program, torch.ones(2)))
    assert targets.count(aten._assert_async.msg) == 2
    assert targets.count(aten.sum.default) == 1


class Cell(nn.Module):
    """Three branches, each with an activation and a pooling of its own, as in NASNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, image: Tensor) -> Tensor:
        x = functional.avg_pool2d(image, 4)
        pools = [functional.avg_pool2d(x, 3, 1, 1) for _ in range(3)]
        return sum((a(x.relu()) + b for a, b in zip(self.layers, pools, strict=True)), x)


@pytest.mark.parametrize("options", [{"fold_weights": True}, {"device": "virtual"}], ids=str)
def test_a_compiled_model_computes_it_once_and_gives_eagers_bits(options: dict[str, Any]) -> None:
    model, x = Cell().eval(), torch.randn(1, 4, 24, 24)
    with torch.no_grad():
        compiled = torch.compile(model, backend="nimble", options=options)
        assert_same_bits(compiled(x), model(x))
    (program,) = nimble_fx.programs()
    targets = [task.target for task in program.graph.tasks]
    assert targets.count(aten.avg_pool2d.default) == 2
    assert sum("relu" in str(target) for target in targets) == 1
