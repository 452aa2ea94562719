"""Values that depend on no input are computed at compile time, and callers cannot notice."""

import copy
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.tracing.constant_folding import MAX_BYTES, fold_constants
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.schedules import aten_graph

Function = Callable[..., Any]

MADE: dict[str, Callable[[], Tensor]] = {
    "integers": lambda: torch.arange(3),
    "floats": lambda: torch.arange(3.0),
    "further": lambda: torch.arange(1, 4),
    "ones": lambda: torch.full((3,), 1),
    "ones in float": lambda: torch.full((3,), 1.0),
    "truths": lambda: torch.full((3,), True),
    "zeros": lambda: torch.zeros(3),
    "minus zeros": lambda: torch.full((3,), -0.0),
    "no numbers": lambda: torch.full((3,), torch.nan),
    "half": lambda: torch.arange(3, dtype=torch.bfloat16),
    "complex": lambda: torch.full((3,), 1 + 2j),
    "equal": lambda: torch.full((3, 2), 1.0),
    "equal by columns": lambda: torch.full((2, 3), 1.0).t(),
    "identity": lambda: torch.eye(3),
    "columns": lambda: torch.arange(9.0).view(3, 3).t(),
    "gaps": lambda: torch.arange(6)[::2],
    "repeated": lambda: torch.ones(1).expand(3),
    "nothing": lambda: torch.zeros(0, 3),
    "pairs": lambda: torch.tril_indices(3, 3, -1),
    "literal": lambda: torch.tensor([1.0, 2.0, 3.0]),
    "number": lambda: torch.tensor(2.5),
}
"""What is made out of nothing; no two make the same."""

CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "more": lambda v: v + 1,
    "all before": lambda v: v.cumsum(-1),
    "all items": lambda v: (
        torch.cat([v.unbind()[0].unsqueeze(0), v]) if v.dim() and v.numel() else v
    ),
    "sorted": lambda v: v.sort(stable=True)[0] if not v.is_complex() else v,
    "their places": lambda v: v.sort(stable=True)[1] if not v.is_complex() else v,
    "two of each": lambda v: v.repeat_interleave(2, 0) if v.dim() else v,
    "conjugate": lambda v: v.conj(),
    "imaginary": lambda v: v.conj().imag if v.is_complex() else v,
    "itself": lambda v: v.view_as(v),
    "the rest": lambda v: v[1:] if v.dim() and v.shape[0] else v,
    "by columns": lambda v: v.mT if v.dim() > 1 else v,
    "upside down": lambda v: v.flip(0) if v.dim() else v,
    "random": lambda v: v.double() + torch.rand(()) if not v.is_complex() else v,
}
"""What is made of it."""


DRAW = (
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
    *("normal", "bernoulli", "multinomial", "native_dropout", "poisson", "binomial", "uniform"),
    *("exponential", "geometric", "cauchy", "log_normal", "_standard_gamma", "_sample_dirichlet"),
)
"""Operators that draw random numbers."""


def squared(value: Tensor) -> Tensor:
    return value.mul_(value) if 0 not in value.stride() else value


USED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "computed with": lambda x, v: x.sum() * v,
    "returned": lambda x, v: v,
    "returned in part": lambda x, v: v[1:] if v.dim() and v.shape[0] else v,
    "written": lambda x, v: squared(v) * x.sum(),
    "written in part": lambda x, v: (squared(v[:1]).sum() if v.dim() else x.sum()) + v,
    "written and returned": lambda x, v: squared(v),
}
"""What becomes of that."""

Step = tuple[str, list[str], str]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(MADE)),
        st.lists(st.sampled_from(sorted(CHANGED)), max_size=3),
        st.sampled_from(sorted(USED)),
    ),
    min_size=1,
    max_size=4,
)


def program_of(steps: list[Step]) -> Function:
    def program(x: Tensor) -> list[Tensor]:
        results = []
        for made, changes, use in steps:
            value = MADE[made]()
            for change in changes:
                value = CHANGED[change](value)
            results.append(USED[use](x, value))
        return results

    return program


def folded(function: Function, *inputs: Any, functional: bool = True) -> GraphModule:
    return fold_constants(aten_graph(function, *inputs, functional=functional), lambda d: d)


def operators(gm: GraphModule) -> list[str]:
    return [node.target.__name__ for node in gm.graph.nodes if node.op == "call_function"]


def constants(gm: GraphModule) -> list[Tensor]:
    return [getattr(gm, str(node.target)) for node in gm.graph.find_nodes(op="get_attr")]


def seeded(function: Function, *inputs: Any) -> Any:
    torch.manual_seed(3)
    return function(*inputs)


@given(STEPS, st.booleans())
def test_each_call_gives_what_eager_gives_to_be_written_to(
    steps: list[Step], functional: bool
) -> None:
    program, x = program_of(steps), torch.rand(2)
    gm = folded(program, x, functional=functional)
    for _ in range(2):
        ours, eagers = list(seeded(gm, x)), seeded(program, x)
        assert_same_bits(ours, eagers)
        assert [v.is_conj() for v in ours] == [v.is_conj() for v in eagers]
        assert_same_sharing(ours, eagers)
        for value in ours:
            if 0 not in value.stride():
                value.fill_(7)


@given(STEPS)
def test_what_is_computed_with_is_left_to_no_call(steps: list[Step]) -> None:
    assume(all(made != "nothing" for made, _, _ in steps))  # strides of no elements vary
    changes = [[c for c in changes if c != "random"] for _, changes, _ in steps]
    drawn = zip(steps, changes, strict=True)
    gm = folded(
        program_of([(made, each, "computed with") for (made, _, _), each in drawn]), torch.rand(2)
    )
    assert set(operators(gm)) <= {"sum.default", "mul.Tensor"}


@given(st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=6))
@example(list(MADE))
def test_there_are_as_many_constants_as_different_tensors(names: list[str]) -> None:
    gm = folded(program_of([(name, [], "computed with") for name in names]), torch.rand(2))
    assert len(constants(gm)) == len(set(names))


@given(STEPS)
def test_fake_tensors_tell_the_truth_of_constants_and_share_no_memory(steps: list[Step]) -> None:
    gm = folded(program_of(steps), torch.rand(2))
    nodes = [n for n in gm.graph.find_nodes(op="get_attr") if n.target.endswith("_constant")]
    for node in nodes:
        value, fake = getattr(gm, node.target), node.meta["val"]
        geometry = operator.attrgetter("shape", "dtype", "device", "layout")
        assert geometry(value) == geometry(fake)
        assert value.stride() == fake.stride()
        assert not value.is_inference()
        assert not value.requires_grad
    assert len({node.meta["val"].untyped_storage()._cdata for node in nodes}) == len(nodes)


@pytest.mark.parametrize("settings", ["modes", "default device", "default type", "autocast"])
def test_constants_are_eagers_whatever_is_set_where_they_are_computed(settings: str) -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.eye(4, dtype=torch.float32) @ torch.full((4, 4), 1 / 3)

    x = torch.rand(4, 4)
    gm, state = aten_graph(program, x), torch.get_rng_state()
    if settings == "modes":
        with torch.inference_mode(), torch._subclasses.FakeTensorMode():
            fold_constants(gm, lambda d: d)
    elif settings == "default device":
        with torch.device("meta"):
            fold_constants(gm, lambda d: d)
    elif settings == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            fold_constants(gm, lambda d: d)
    else:
        torch.set_default_dtype(torch.float64)
        try:
            fold_constants(gm, lambda d: d)
        finally:
            torch.set_default_dtype(torch.float32)
    assert_same_bits(gm(x), program(x))
    assert not any(value.is_inference() for value in constants(gm))
    if settings != "default type":  # there a literal is not what was traced, and stays
        assert operators(gm) == ["add.Tensor"]
    assert torch.equal(torch.get_rng_state(), state)


def test_two_draws_of_random_numbers_stay_two() -> None:
    def program(x: Tensor) -> Tensor:
        drawn = torch.zeros(64).uniform_() - torch.zeros(64).uniform_()
        return torch.stack([x + torch.rand(64) - torch.rand(64), drawn])

    with torch.no_grad():
        one, other = torch.compile(program, backend="nimble")(torch.zeros(64))
    assert one.count_nonzero() > 32
    assert other.count_nonzero() > 32


@pytest.mark.parametrize("name", DRAW)
def test_operators_that_draw_random_numbers_are_marked_by_pytorch(name: str) -> None:
    """Nothing else tells that two draws differ."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        assert torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags


def test_an_operator_that_raises_raises_in_each_call() -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.arange(3)[torch.tensor([5])]

    gm = folded(program, torch.rand(1))
    assert constants(gm)
    for _ in range(2):
        with pytest.raises(IndexError):
            gm(torch.rand(1))


def test_memory_without_a_value_is_no_constant() -> None:
    gm = folded(lambda x: x + torch.empty(3), torch.rand(3))
    assert operators(gm) == ["empty.memory_format", "add.Tensor"]


def test_what_cannot_be_computed_now_stays() -> None:
    gm = aten_graph(lambda x: x + torch.arange(3), torch.rand(3))
    fold_constants(gm, lambda device: None)
    assert operators(gm) == ["arange.default", "add.Tensor"]


def test_what_an_operator_of_somebody_elses_takes_is_made_in_each_call() -> None:
    """Its schema says that it returns a new tensor, and it may not.

    The graph is called itself: what PyTorch compiles, it checks for such lies where `CI` is set.
    """
    library = torch.library.Library("constants_test", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.contiguous(), "CompositeExplicitAutograd")
    library.impl("same", lambda x: torch.empty_like(x), "Meta")

    def program() -> tuple[Tensor, Tensor]:
        same = torch.ops.constants_test.same
        return same(torch.zeros(4)), same(torch.zeros(4))

    gm = fold_constants(make_fx(program, tracing_mode="fake")(), lambda d: d)
    one, other = gm()
    one.fill_(5)
    assert not other.any()
    assert not gm()[0].any()


def test_a_view_whose_fake_tensor_aliases_nothing_is_still_the_callers() -> None:
    gm = aten_graph(lambda x: (x + 1, torch.arange(3)[1:]), torch.rand(3))
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        node.meta["val"] = node.meta["val"].clone()
    fold_constants(gm, lambda d: d)(torch.rand(3))[1].zero_()
    assert gm(torch.rand(3))[1].tolist() == [1, 2]


def test_a_large_tensor_is_made_in_each_call() -> None:
    n = MAX_BYTES // 4

    def program(x: Tensor) -> Tensor:
        return x + torch.ones(n) + torch.ones(n + 1)[1:]

    assert operators(folded(program, torch.rand(n))).count("ones.default") == 1


def test_sizes_that_change_are_inputs() -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[0]) + torch.arange(3)[1]

    compiled = torch.compile(program, backend="nimble", dynamic=True)
    with torch.no_grad():
        for n in (4, 7):
            assert_same_bits(compiled(torch.ones(n)), program(torch.ones(n)))
    (graph,) = [each.graph for each in nimble_fx.programs()]
    assert len(graph.constants) == 1


class Pairs(nn.Module):
    """The usual interaction of DLRM: the dot products of all pairs, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.weight @ x.transpose(1, 2)
        i, j = torch.tril_indices(4, 4, -1)
        return z[:, i, j] * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"device": "virtual", "seed": 7, "policy": "nimble"},
    {"device": "virtual", "seed": 7, "copy_outputs": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_model_with_indices_in_forward_computes_what_eager_does(options: dict[str, Any]) -> None:
    model = Pairs()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble", options=options)
    for _ in range(3):
        x = torch.randn(2, 4, 5)
        with torch.no_grad():
            assert_same_bits(compiled(x), eager(x))
        ours, eagers = compiled(x), eager(x)
        assert_same_bits(ours, eagers)
        for each in (ours, eagers):
            each.square().sum().backward()
        assert_same_bits(model.weight.grad, eager.weight.grad)
    for program in nimble_fx.programs():
        assert len(program.graph.constants) == 3
        assert not {"tril_indices", "lift_fresh_copy"} & {t.name for t in program.graph.tasks}
        assert program.status.frozen == bool(options)


def test_a_constant_is_in_the_file_of_its_program(tmp_path: Path) -> None:
    model, x = Pairs(), torch.randn(2, 4, 5)
    with torch.no_grad():
        expected = torch.compile(model, backend="nimble")(x)
    program = nimble_fx.load(nimble_fx.programs()[-1].save(tmp_path / "pairs.json"))
    assert_same_bits(program.bind(model)(x), [expected])
