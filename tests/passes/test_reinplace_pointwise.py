"""Results that overwrite operands: each reader still reads the right value."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

import nimble_fx
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.dependencies import hazards
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph, ref_names
from nimble_fx.passes.reinplace_pointwise import ReinplacePointwise
from nimble_fx.torch_internals.in_place_forms import elementwise_in_place_form
from nimble_fx.torch_internals.kernels.onednn import CONVOLUTION, LINEAR
from nimble_fx.verify import verify_contents
from tests.grammar import AtenProgram
from tests.strategies import aten_programs
from tests.support.bits import assert_same_bits
from tests.support.eager import assert_same
from tests.support.elementwise_operators import called, overwriting_operators
from tests.support.schedules import traced

aten = torch.ops.aten
WINDOW = ([0, 0], [1, 1], [1, 1], 1)


def graphs(function: Callable[..., Any], *inputs: Tensor) -> tuple[TaskGraph, TaskGraph]:
    """As traced, and after."""
    graph = traced(function, *inputs, functional=False).graph
    return graph, ReinplacePointwise()(graph)


def overwriting(function: Callable[..., Any], *inputs: Tensor) -> list[Task]:
    """The tasks that write their result over an operand."""
    before, after = graphs(function, *inputs)
    return [
        new for old, new in zip(before.tasks, after.tasks, strict=True) if new.target != old.target
    ]


def recklessly(graph: TaskGraph, chosen: int) -> TaskGraph:
    """With one of its elementwise operators in place, whoever reads what it writes over."""
    holds = {value.name: value.holds for value in graph.values}
    types = graph.types
    could = [
        task
        for task in graph.tasks
        if elementwise_in_place_form(task.target)
        and isinstance(task.args[0], Ref)
        and types[task.args[0].name] == task.type
        and len(holds[task.args[0].name]) == 1
    ]
    if not could:
        return graph
    overwriting = could[chosen % len(could)]
    lies_in = dict(zip(overwriting.allocates, holds[overwriting.args[0].name], strict=True))
    tasks = []
    for task in graph.tasks:
        if task is overwriting:
            task = task.updated(target=elementwise_in_place_form(task.target), allocates=())
        places = {"reads": task.reads, "writes": task.writes, "holds": task.holds}
        there = {k: tuple([lies_in.get(s, s) for s in v]) for k, v in places.items()}
        tasks.append(task.updated(**there))
    return graph.replace_tasks(tasks)


def run(graph: TaskGraph, constants: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Any]:
    """Task by task, in program order: the inputs after the call, and the outputs."""
    values: dict[str, Any] = dict(zip([given.name for given in graph.inputs], inputs, strict=True))
    values.update(constants)

    def known(arguments: Any) -> Any:
        return pytree.tree_map_only(Ref, lambda ref: values[ref.name], arguments)

    torch.manual_seed(0)
    for task in graph.tasks:
        values[task.name] = task.target(*known(task.args), **known(dict(task.kwargs)))
    return [*inputs, *known(list(graph.outputs))]


@given(aten_programs(), st.integers(0, 7))
def test_what_is_proved_makes_the_same_bits(program: AtenProgram, chosen: int) -> None:
    """Also of graphs that are not as careful; tensors that lie in themselves cannot be written."""
    result = traced(program.function(), *program.example_inputs(), functional=False)
    graph = recklessly(result.graph, chosen)
    try:
        verify_contents(graph, result.graph)
    except ScheduleError:
        return
    expected = run(result.graph, result.constants, program.example_inputs())
    try:
        ours = run(graph, result.constants, program.example_inputs())
    except RuntimeError as error:
        if "single memory location" not in str(error):
            raise
        return
    assert_same_bits(ours, expected)


@given(aten_programs())
def test_what_is_overwritten_with_care_is_proved(program: AtenProgram) -> None:
    before, after = graphs(program.function(), *program.example_inputs())
    verify_contents(after, before)


def test_a_factory_is_like_a_tensor_that_is_overwritten() -> None:
    before, after = graphs(
        lambda x: (lambda y: (y.relu(), torch.ones_like(y)))(x @ x), torch.eye(4)
    )
    assert [task.name for task in after.tasks if task.target == aten.relu_.default] == ["relu"]
    verify_contents(after, before)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: (lambda y: y.relu() @ y)(x @ x), "mm_1 reads mm where .*relu.* wrote last"),
        (lambda x: (lambda y: (y, y.relu()))(x @ x), "the caller reads mm where"),
        (lambda x: x.relu(), "the caller reads x_1 where"),
    ],
)
def test_what_is_overwritten_too_early_is_named(
    program: Callable[[Tensor], object], message: str
) -> None:
    before, _ = graphs(program, torch.randn(4, 4))
    with pytest.raises(ScheduleError, match=message):
        verify_contents(recklessly(before, 0), before)


def test_a_constant_is_not_overwritten() -> None:
    before, _ = graphs(lambda x: x.relu(), torch.randn(4))
    before = replace(before, inputs=(), constants=before.inputs)
    with pytest.raises(ScheduleError, match="the caller reads x_1 where"):
        verify_contents(recklessly(before, 0), before)


@pytest.mark.parametrize(
    "edit",
    [
        lambda task: task.updated(target=aten.sigmoid_.default),
        lambda task: task.updated(target=aten.sigmoid.default),
        lambda task: task.updated(writes=("relu",), holds=("relu",)),
        lambda task: task.updated(type=None),
        lambda task: task.updated(after=()),
    ],
)
def test_another_operator_in_its_place_is_refused(edit: Callable[[Task], Task]) -> None:
    before, after = graphs(lambda x: (x @ x).relu(), torch.randn(4, 4))
    tasks = [edit(task) if task.name == "relu" else task for task in after.tasks]
    with pytest.raises(
        ScheduleError, match=r"relu \(.*(is not the in-place form|differs from the traced task)"
    ):
        verify_contents(after.replace_tasks(tasks), before)
    with pytest.raises(ScheduleError, match="differs from its trace by more"):
        verify_contents(after.replace_tasks(after.tasks[:-1]), before)


@pytest.mark.parametrize(
    ("program", "target"),
    [
        (lambda x: (x.half() @ x.half()).add(x), aten.add_.Tensor),
        (lambda x: (x @ x).gt(0), aten.gt_.Scalar),
        (lambda x: (x @ x)[:, :2].relu(), aten.relu_.default),
        (lambda x: (x @ x).expand(3, 4, 4).relu(), aten.relu_.default),
        (lambda x: (lambda y: y.add(y.t()))(x @ x), aten.add_.Tensor),
        (lambda x: torch.pow(2.0, x @ x), aten.pow_.Scalar),
        (lambda x: (x @ x).add(torch.ones(3, 4, 4)), aten.add_.Tensor),
    ],
)
def test_what_is_not_the_same_in_place_is_refused(
    program: Callable[[Tensor], Tensor], target: OpOverload
) -> None:
    before, _ = graphs(program, torch.randn(4, 4))
    *tasks, last = before.tasks
    holds = before.by_name[last.uses[0]].holds
    forced = last.updated(target=target, writes=holds, holds=holds, allocates=())
    with pytest.raises(ScheduleError, match="is not the in-place form"):
        verify_contents(before.replace_tasks([*tasks, forced]), before)


@given(aten_programs())
def test_tasks_come_after_the_same_tasks_as_before(program: AtenProgram) -> None:
    before, after = graphs(program.function(), *program.example_inputs())
    expected = {task.name: set(task.after) for task in before.launching}
    assert {task.name: set(task.after) for task in after.launching} == expected
    assert {name: set(names) for name, names in hazards(after.launching).items()} == expected


@given(aten_programs())
def test_outputs_share_memory_as_before(program: AtenProgram) -> None:
    def sharing(graph: TaskGraph) -> list[list[bool]]:
        holds = {value.name: set(value.holds) for value in graph.values}
        held = [holds[name] for name in ref_names(graph.outputs)]
        held += [holds[value.name] for value in (*graph.inputs, *graph.constants)]
        return [[bool(one & other) for one in held] for other in held]

    before, after = graphs(program.function(), *program.example_inputs())
    assert sharing(after) == sharing(before)


def test_the_caller_may_write_to_results_before_the_backward() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (x @ x).t().add(1), (x @ x.t()).view(2, 8).add(1).sub(x.view(2, 8))

    def gradient(function: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor | None:
        x = torch.eye(4, requires_grad=True)
        first, second = function(x)
        (first.mul_(2).sum() + second.mul_(2).sum()).backward()
        return x.grad

    assert_same(gradient(torch.compile(function, backend="nimble")), gradient(function))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x @ x).relu(),
        lambda x: (x @ x) + x,
        lambda x: (x @ x).view(2, 8).unsqueeze(0).sigmoid().sum(),
        lambda x: (x @ x).t().sigmoid().sum(),
        lambda x: aten._unsafe_view.default(x @ x, [2, 8]).sigmoid(),
        lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5)[0].tanh(),
        lambda x: x.topk(2)[0].exp(),
        lambda x: (x @ x).masked_fill(x > 0, 1.0),
        lambda x: LINEAR(x, x, None, "none", [], None).relu(),
        lambda x: CONVOLUTION(
            x[None, None], x[:, None, None, :1], None, *WINDOW, "none", [], None
        ).relu(),
    ],
)
def test_the_one_reader_of_a_new_tensor_writes_over_it(program: Callable[[Tensor], Tensor]) -> None:
    (task,) = overwriting(program, torch.randn(4, 4))
    assert not task.allocates


def test_a_chain_of_them_needs_one_tensor() -> None:
    before, after = graphs(lambda x: (x @ x).relu().sigmoid().mul(2).neg(), torch.randn(4, 4))
    assert [len(g.launching) for g in (before, after)] == [5, 5]
    assert {s for task in after.launching for s in task.writes} == {"mm"}


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.relu(),  # an input's memory is not the program's
        lambda x: (x @ x) @ x,  # no elementwise operator
        lambda x: (lambda y: (y, y.relu()))(x @ x),  # returned
        lambda x: (lambda y: (y[0], y.relu()))(x @ x),  # a view of it is returned
        lambda x: (lambda y: y.relu() @ y)(x @ x),  # read again
        lambda x: (lambda y: y.relu() @ y.t())(x @ x),  # read again through a view
        lambda x: (lambda y: y + y.t())(x @ x),  # read where it is being written
        lambda x: x + (x @ x),  # the second operand
        lambda x: (x @ x) > 0,  # of another type
        lambda x: x.sum(0).add(x),  # of another shape
        lambda x: x.sum(0, keepdim=True).expand(4, 4).relu(),  # one element in several places
        lambda x: (x @ x).t().relu(),  # a view, which would be returned
        lambda x: (x @ x)[0].relu(),  # a part, that would keep the whole alive
        lambda x: torch.rrelu(x @ x, training=True),  # draws random numbers
    ],
)
def test_what_must_stay_is_not_written(program: Callable[[Tensor], object]) -> None:
    assert not overwriting(program, torch.randn(4, 4))


def test_what_somebody_elses_operator_returns_is_not_written() -> None:
    """Its schema says that it is a new tensor, and it may not be."""
    library = torch.library.Library("overwrite_test", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x, "CompositeExplicitAutograd")
    library.impl("same", lambda x: torch.empty_like(x), "Meta")
    assert not overwriting(lambda x: torch.ops.overwrite_test.same(x).relu(), torch.randn(4))


def test_gradients_that_are_summed_need_no_new_tensor() -> None:
    """As autograd sums them in eager."""
    table = torch.nn.Embedding(10, 4)

    def program(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (table(a) * table(b)).sum() + table(c).sum()

    inputs = [torch.tensor([3, 1]), torch.tensor([1, 0]), torch.tensor([3, 3])]
    torch.compile(program, backend="nimble")(*inputs).backward()
    backward = nimble_fx.programs()[-1].graph
    sums = [str(task.target) for task in backward.launching if ".add" in str(task.target)]
    assert sums == ["aten.add_.Tensor"] * 2
    ours, table.weight.grad = table.weight.grad, None
    program(*inputs).backward()
    assert_same(ours, table.weight.grad)


LAYOUTS = [
    torch.rand(37, 5),
    torch.rand(5, 37).t(),
    torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.rand(1, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.rand(4, 1, 3, 3).to(memory_format=torch.channels_last),
    torch.rand(4, 3, 1, 1).to(memory_format=torch.channels_last),
    torch.rand(1, 4).t(),
    torch.rand(4, 1).t(),
    torch.rand(1, 4),
    torch.rand(0, 4),
    torch.rand(()),
]


@pytest.mark.parametrize("operator", overwriting_operators(), ids=str)
def test_strides_are_eagers(operator: OpOverload) -> None:
    """Also those of what comes after, for which PyTorch's fake tensors may promise others."""

    def program(*layouts: Tensor) -> tuple[Tensor, ...]:
        written = [called(operator, torch.clone(x)) for x in layouts]
        return *written, *map(torch.clone, written)

    is_of_integers = re.search("bitwise|gcd|lcm", str(operator))
    inputs = [x.mul(4).to(torch.int64 if is_of_integers else x.dtype) for x in LAYOUTS]
    try:
        result = traced(program, *inputs, functional=False)
    except (RuntimeError, NotImplementedError):
        return  # it is not for elements of this type
    graph = ReinplacePointwise()(result.graph)
    assert_same_bits(run(graph, result.constants, inputs), [*inputs, *program(*inputs)])


def test_what_could_be_laid_out_in_several_ways_is_not_written() -> None:
    written = [bool(overwriting(lambda x: x.clone().relu(), layout)) for layout in LAYOUTS]
    assert written == [True] * 4 + [False] * 4 + [True, False, False]


def test_sizes_that_depend_on_data_may_be_one() -> None:
    def program(x: Tensor, chosen: Tensor) -> Tensor:
        return (x[chosen] * 2).t().relu()

    x = torch.randn(6, 4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        compiled = torch.compile(program, backend="nimble", fullgraph=True)
        for n in (3, 1, 0):
            chosen = torch.arange(6) < n
            assert_same_bits(compiled(x, chosen), program(x, chosen))


def test_a_number_does_not_keep_the_memory_of_what_it_is_the_mean_of() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(a, b) * 0.5

    with torch.no_grad():
        loss = torch.compile(program, backend="nimble")(torch.rand(50, 50), torch.rand(50, 50))
    assert loss.untyped_storage().nbytes() == 4


def test_statistics_of_another_type_than_promised_make_results_of_eagers_types() -> None:
    """PyTorch's shape functions promise `bfloat16` for a norm's mean that is `float32`."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        y, mean, _ = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
        z = torch.exp(x.sum((0, 2)))
        return z.mul(mean.neg()), torch.relu(y.neg())

    inputs = (torch.randn(2, 4, 3, dtype=torch.bfloat16), torch.ones(4), torch.zeros(4))
    devices: tuple[dict[str, Any], ...] = ({}, {"device": "virtual"})
    for options in devices:
        torch.compiler.reset()
        compiled = torch.compile(function, backend="nimble", options=options)
        with torch.no_grad():
            assert_same(compiled(*inputs), function(*inputs))
