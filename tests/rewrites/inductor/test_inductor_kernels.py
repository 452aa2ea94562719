"""Inductor's kernels, as tasks of a schedule, compute what the model does."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import nimble_fx
from nimble_fx.errors import FileError, InputError, NimbleWarning, UnsupportedError
from nimble_fx.rewrites.inductor import inductor_kernels
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime, with_inductor_kernels
from nimble_fx.rewrites.inductor.opaque_operators import CONCATENATIONS
from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS
from nimble_fx.torch_internals.kernels.inductor import InductorModule
from nimble_fx.torch_internals.operators import KERNELS
from nimble_fx.tracing.aten_to_tasks import trace
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_sharing
from tests.support.inductor_kernels import compiled, kernels_of
from tests.support.inference_graphs import inference_graph
from tests.support.models import CASES

WEIGHT = torch.randn(4, 4)


def branches(x: Tensor, y: Tensor) -> Tensor:
    left = torch.relu(x) * 2
    right = torch.sigmoid(y @ WEIGHT)
    return torch.cat([left, right], 1).softmax(1)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(3, 4)


def n_kernels(gm: GraphModule) -> float:
    return len(trace(gm).graph.launching)


@pytest.mark.parametrize("join", [torch.cat, torch.stack])
@pytest.mark.parametrize(
    ("predicted_us", "is_apart"),
    [(None, False), (n_kernels, False), (lambda gm: -n_kernels(gm), True)],
)
def test_a_concatenation_is_a_kernel_of_its_own_where_that_is_predicted_to_be_faster(
    join: Callable[..., Tensor], predicted_us: PredictedTime | None, is_apart: bool
) -> None:
    def joined(x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (join([x.exp() + 1, y.sin() * 2], 0).sigmoid(),)

    gm = make_fx(joined, tracing_mode="fake")(*inputs())
    made = with_inductor_kernels(gm, predicted_us)
    assert any(node.target in CONCATENATIONS for node in made.graph.nodes) == is_apart
    x = inputs()
    torch.testing.assert_close(made(*x), joined(*x))


@pytest.mark.parametrize("seed", range(2))
def test_fused_kernels_run_in_any_order_that_the_schedule_allows(seed: int) -> None:
    run = compiled(branches, device="virtual", seed=seed)
    for _ in range(3):
        x, y = inputs()
        torch.testing.assert_close(run(x, y), branches(x, y))
    (program,) = nimble_fx.programs()
    assert program.status.n_captures == 1
    assert kernels_of(program)
    assert len(program.graph.launching) < 6  # six operators before
    program.verify()


def test_the_module_says_which_lines_a_kernel_computes_and_the_program_has_its_text() -> None:
    compiled(branches)(*inputs())
    (program,) = nimble_fx.programs()
    (name, *_) = kernels_of(program)
    lines = program.source.splitlines()
    above = lines.index(next(line for line in lines if f"{KERNELS}.{name}" in line))
    comments = [line for line in lines[:above] if "test_inductor_kernels.py" in line]
    assert any("torch.relu(x) * 2" in line for line in comments)
    assert any("torch.cat([left, right], 1)" in line for line in comments)
    assert "\n# program.kernel_source(name): the text of a kernel" in program.source
    assert "kernel(" in program.kernel_source(name)
    with pytest.raises(InputError, match=f"no kernel 'mm'; its kernels: {name}"):
        program.kernel_source("mm")


def test_the_same_program_elsewhere_has_its_own_lines() -> None:
    """Inductor takes the second one from its cache."""

    def same(x: Tensor, y: Tensor) -> Tensor:
        first = torch.relu(x) * 2
        second = torch.sigmoid(y @ WEIGHT)
        return torch.cat([first, second], 1).softmax(1)

    for function, line in ((branches, "left = torch.relu(x) * 2"), (same, "first = torch.relu")):
        compiled(function)(*inputs())
        assert line in nimble_fx.programs()[-1].source


def grows(x: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    return x.sin().t(), x.cos() + 1


def random(x: Tensor) -> Tensor:
    by_row = x.new_empty(x.shape[0], 1).bernoulli_(0.8)
    return torch.nn.functional.dropout(x.exp(), 0.5) + torch.rand_like(x) * by_row


def parts(x: Tensor) -> Tensor:
    return torch.cat([x[1:].t().mm(x[:-1]), x.exp()])


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "virtual"])
@pytest.mark.parametrize("function", [grows, random, parts])
def test_writes_random_numbers_and_parts_of_memory_are_eagers(
    function: Callable[[Tensor], Any], device: str | None
) -> None:
    run = compiled(function, device=device)
    for _ in range(2):
        memory = torch.randn(9, 4)
        ours, eagers = memory.clone()[4:], memory.clone()[4:]  # they begin inside of memory
        with torch.random.fork_rng():
            expected = function(eagers)
        torch.testing.assert_close(run(ours), expected)
        torch.testing.assert_close(ours, eagers)
        torch.rand(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branchy", "dropout", "cache", "mutates", "tables", "recurrent"])
def test_models_are_eagers_in_inference_and_training(name: str) -> None:
    case = CASES[name]
    for training in (False, True) if case.trainable else (False,):
        model = case.model().train(training)
        eager, given = copy.deepcopy(model), case.inputs()
        run = compiled(model, device="virtual", on_fallback="silent")
        with torch.set_grad_enabled(training):
            for _ in range(2):
                torch.manual_seed(1)
                ours = run(*copy.deepcopy(given))
                torch.manual_seed(1)
                torch.testing.assert_close(ours, eager(*copy.deepcopy(given)))
        torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))


@pytest.mark.slow
def test_gradients_are_eagers() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
    eager, x = copy.deepcopy(model), torch.randn(3, 4)
    run = compiled(model, device="virtual")
    for _ in range(2):
        run(x).square().sum().backward()
        eager(x).square().sum().backward()
    for ours, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)
    assert len([p for p in nimble_fx.programs() if kernels_of(p)]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "virtual"])
def test_a_kernel_reads_more_tensors_than_an_operator_has_parameters(device: str | None) -> None:
    def many(written: Tensor, *xs: Tensor) -> Tensor:
        written.add_(1)
        return sum(xs, written).relu()

    xs = [torch.randn(5) for _ in range(MAX_PARAMETERS + 10)]
    run = compiled(many, device=device)
    for _ in range(2):
        ours, eagers = torch.zeros(5), torch.zeros(5)
        torch.testing.assert_close(run(ours, *xs), many(eagers, *xs))
        torch.testing.assert_close(ours, eagers)
    assert "([" in nimble_fx.programs()[-1].source  # a list of what the kernel only reads


def test_a_kernel_that_writes_to_too_many_tensors_is_left_to_pytorch_with_the_reason() -> None:
    def many(*xs: Tensor) -> None:
        for x in xs:
            x.add_(1)

    xs = [torch.zeros(5) for _ in range(MAX_PARAMETERS + 1)]
    with pytest.warns(NimbleWarning, match="writes to more tensors than an operator of PyTorch"):
        compiled(many, on_fallback="warn")(*xs)
    assert torch.equal(torch.stack(xs), torch.ones(len(xs), 5))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to(torch.complex64) * 2,
        lambda x: torch.fft.fftn(x).abs() + x.sin(),
        lambda x: (torch.fft.fft(x) * x.to(torch.complex64)).real.relu() + 1,
    ],
)
@pytest.mark.parametrize("device", [None, "virtual"])
def test_copies_to_another_type_are_pytorchs(
    function: Callable[[Tensor], Tensor], device: str | None
) -> None:
    run, x = compiled(function, device=device), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(run(x), function(x))


def test_negated_inputs_are_read_by_pytorchs_kernels_with_the_reason() -> None:
    x = torch.randn(3, dtype=torch.complex64).conj().imag
    with pytest.warns(NimbleWarning, match="PyTorch's kernels.*negated lazily"):
        ours = compiled(lambda x: x * 2 + 1, on_fallback="warn")(x)
    assert torch.equal(ours, x * 2 + 1)


@pytest.mark.parametrize("function", [lambda x: x.shape, lambda x: (x, x.view(-1)), lambda x: 1])
def test_what_computes_nothing_needs_no_kernels(function: Callable[[Tensor], Any]) -> None:
    x = torch.randn(3, 4)
    run = compiled(function)
    torch.testing.assert_close(run(x), function(x))
    assert not any(map(kernels_of, nimble_fx.programs()))


def test_parts_of_parts_begin_where_the_first_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rewritten(
        monkeypatch,
        torch.randn(3),
        """
    buf0 = empty_strided_cpu((6, ), (1, ), torch.float32)
    buf1 = reinterpret_tensor(buf0, (4, ), (1, ), 1)
    buf2 = reinterpret_tensor(buf1, (3, ), (1, ), 2)
    aten.sin.out(arg0_1, out=buf2)
    buf3 = reinterpret_tensor(buf0, (3, ), (1, ), 3)""",
        "buf3",
    )
    x = torch.randn(3)
    assert torch.equal(made(x)[0], x.sin())


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((3, 1), "assert_size_stride(arg0_1, (3, 1), (1, 7), 'input')"),
        ((0, 3), "assert_size_stride(arg0_1, (0, 3), (9, 9), 'input')"),
    ],
)
def test_strides_from_no_element_to_another_may_be_any(
    shape: tuple[int, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f"{line}\n    buf0 = torch.ops.aten.sin.default(arg0_1)"
    x = torch.randn(shape)
    assert torch.equal(rewritten(monkeypatch, x, lines, "buf0")(x)[0], x.sin())


def test_what_is_written_to_memory_of_another_dtype_is_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = """
    buf0 = empty_strided_cpu((3, ), (1, ), torch.float64)
    extern_kernels.sin(arg0_1, out=buf0)"""
    with pytest.raises(UnsupportedError, match=r"float64.* where .*float32"):
        rewritten(monkeypatch, torch.randn(3), lines, "buf0")


def rewritten(monkeypatch: pytest.MonkeyPatch, x: Tensor, lines: str, returned: str) -> GraphModule:
    """`x.sin()` with what Inductor is said to have written."""
    gm = make_fx(lambda x: (x.sin(),), tracing_mode="fake")(x)
    (placeholder,) = gm.graph.find_nodes(op="placeholder")
    mode = placeholder.meta["val"].fake_mode
    module = InductorModule(CALL.format(lines, returned), {}, {}, mode)
    monkeypatch.setattr(inductor_kernels, "compile_with_inductor", lambda _: module)
    return with_inductor_kernels(gm)


CALL = """
def call(args):
    arg0_1, = args
    {}
    return ({}, )
"""


@pytest.mark.parametrize(
    ("line", "returned", "error"),
    [
        ("buf0 = torch.ops.aten.sin.default(arg0_1)", "buf0", "draws random numbers in another"),
        ("buf0 = torch.ops.aten.rand_like.default(arg0_1)", "arg0_1", "rand_like, in .*torch.rand"),
        ("buf0 = torch.ops.aten.mean.default(arg0_1)", "buf0", r"returns \(\(\), \(\), "),
        ("assert_size_stride(arg0_1, (3, ), (2, ), 'input')", "arg0_1", r"strides \(2,\)"),
        ("buf0 = torch.ops.aten.unheard_of.default(arg0_1)", "buf0", "aten.unheard_of.default"),
    ],
)
def test_what_is_not_the_traced_program_is_refused(
    line: str, returned: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand_like(x)

    gm = inference_graph(Random(), torch.randn(3)).gm
    (x,) = gm.graph.find_nodes(op="placeholder")
    module = InductorModule(CALL.format(line, returned), {}, {}, x.meta["val"].fake_mode)
    monkeypatch.setattr(inductor_kernels, "compile_with_inductor", lambda _: module)
    with pytest.raises(UnsupportedError, match=error):
        with_inductor_kernels(gm)


@pytest.mark.slow
def test_attention_by_hand_becomes_one_operator_that_draws_nothing() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v

    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    torch.testing.assert_close(compiled(attention)(q, k, v), attention(q, k, v))
    (program,) = nimble_fx.programs()
    assert len(program.graph.launching) < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.relu(x), torch.relu(x), x.clone(), x.clone()),
        lambda x: (x, x.view(-1), (x + 1).t(), x * 2),
        lambda x: (lambda y: (y, y.view(-1), y[0], y.clone()))(x.sin()),
    ],
)
def test_outputs_share_memory_as_eagers(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    x = torch.randn(3, 4)
    outputs = compiled(function, device="virtual")(x)
    assert_same_sharing([x, *outputs], [x, *function(x)])


@pytest.mark.slow
@pytest.mark.parametrize("function", [lambda x: (x, x * 1), lambda x: (x.sin(), x + 0)])
def test_the_output_of_an_operator_that_changes_nothing_is_a_copy_as_eagers(
    function: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    """PyTorch 2.15's Inductor returns the input itself: PyTorch's kernels run there."""
    x = torch.randn(3, 4)
    outputs = compiled(function, on_fallback="silent")(x)
    assert_same_sharing([x, *outputs], [x, *function(x)])


def test_infinite_arguments_of_operators_are_read() -> None:
    def distances(x: Tensor) -> Tensor:
        return torch.cdist(x, x + 1, p=torch.inf) + 1

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(distances)(x), distances(x))


def test_without_a_compiler_pytorchs_kernels_run_with_the_reason() -> None:
    def unseen(x: Tensor) -> Tensor:
        return (x.sin() * 1.2345).cos() + x.exp() / 5.4321

    x = torch.randn(7, 3)
    run = compiled(unseen, on_fallback="warn")
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.warns(NimbleWarning, match="Inductor cannot compile it.*C\\+\\+"),
    ):
        torch.testing.assert_close(run(x), unseen(x))


def test_a_program_with_kernels_of_this_process_is_not_saved(tmp_path: Path) -> None:
    compiled(branches)(*inputs())
    (program,) = nimble_fx.programs()
    with pytest.raises(FileError, match="kernels='aten'"):
        program.save(tmp_path / "program.json")


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@settings(max_examples=12)
@given(aten_programs(max_steps=8))
def test_any_program_is_eagers(dynamic: bool, program: AtenProgram) -> None:
    """But for random numbers that nobody reads, which are not drawn, and roundings on the way."""
    program = program.returning_what_is_unused()
    assume("torch.bfloat16" not in program.source())
    function = program.function()
    run = compiled(function, dynamic, device="virtual", on_fallback="silent")
    ours, eagers = (program.example_inputs() for _ in range(2))
    with torch.random.fork_rng():
        expected = function(*eagers)
    torch.testing.assert_close(run(*ours), expected, equal_nan=True)
    torch.testing.assert_close(ours, eagers, equal_nan=True)
