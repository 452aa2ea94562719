"""A file with wrong types or memory accesses is refused."""

import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.errors import FileError
from nimble_fx.ir.task_graph import Input, Ref, Task, TaskGraph
from nimble_fx.ir.types import ScalarType, TensorType, TupleType, Type
from nimble_fx.program import Program
from nimble_fx.serialization import check_claims
from tests.support.saved import programs_of_models
from tests.support.trials import Trial, trials

aten = torch.ops.aten
CPU = torch.device("cpu")


def of(*shape: int | str, dtype: torch.dtype = torch.float32) -> TensorType:
    """A contiguous tensor."""
    stride: list[int | str] = []
    step: int | str = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step = step * size if isinstance(step, int) and isinstance(size, int) else f"{step}*{size}"
    return TensorType(shape, tuple(stride), dtype, CPU)


def graph_of(*tasks: Task, **inputs: Type | None) -> TaskGraph:
    """A graph of tasks on inputs, each in memory of its own if it is a tensor."""
    given = [Input(n, t, (n,) if isinstance(t, TensorType) else ()) for n, t in inputs.items()]
    return TaskGraph("program", tuple(given), (), tasks, ())


def made(name: str, target: Any, *args: Any, type: Type | None, **claims: Any) -> Task:  # noqa: A002
    """A task that allocates its result unless it says otherwise."""
    reads = tuple(arg.name for arg in args if isinstance(arg, Ref))
    usual = {"reads": reads, "writes": (name,), "allocates": (name,), "holds": (name,)}
    return Task(name, target, args, type=type, **(usual | claims))


RELU = made("y", aten.relu.default, Ref("x"), type=of(4))
DROPOUT = made("y", aten.bernoulli.default, Ref("x"), type=of(4), ordered=True)
VIEW = made(
    *("y", aten.view.default, Ref("x"), (2, 2)),
    type=of(2, 2),
    reads=(),
    writes=(),
    allocates=(),
    holds=("x",),
)


@pytest.mark.slow
def test_claims_of_compiled_models_are_accepted() -> None:
    for program in programs_of_models():
        check_claims(program.graph, program.sizes)


@given(trials())
def test_claims_of_drawn_programs_are_accepted_unless_they_change_shapes(trial: Trial) -> None:
    """Those that give a value another shape are no programs of torch.compile, and are refused."""
    traced, scheduled = trial.schedule()
    if any(torch.Tag.inplace_view in getattr(t.target, "tags", ()) for t in scheduled.tasks):
        with pytest.raises(FileError, match="changes the shape or strides of an argument"):
            check_claims(scheduled, {})
    else:
        check_claims(traced.graph, {})
        check_claims(scheduled, {})


def other_types(kind: Type | None) -> Iterator[Type | None]:
    """Types that are not this one."""
    match kind:
        case TensorType(shape, stride, dtype):
            longer = (*shape[:-1], 1 + int(shape[-1])) if shape and shape[-1] != "s" else (2,)
            yield replace(kind, shape=longer, stride=stride or (1,))
            yield replace(kind, shape=(1, *shape), stride=(1, *stride))
            yield replace(kind, dtype=torch.int8 if dtype != torch.int8 else torch.int16)
            yield replace(kind, device=torch.device("meta"))
            yield None
            yield TupleType((kind,))
        case TupleType(items):
            yield TupleType(items[:-1])
            yield items[0] if items else None
        case ScalarType():
            yield None
            yield of(2)
        case None:
            yield of(2)


def lies(task: Task) -> Iterator[Task]:
    """The task with one claim changed."""
    for attribute in ("reads", "writes", "allocates", "holds"):
        said = getattr(task, attribute)
        yield task.updated(**{attribute: (*said, "nobody's")})
        if said:
            yield task.updated(**{attribute: said[1:]})
            yield task.updated(**{attribute: (*said, said[0])})
    yield replace(task, ordered=not task.ordered)
    for kind in other_types(task.type):
        yield replace(task, type=kind)


@pytest.mark.slow
@given(st.data())
def test_no_task_may_claim_anything_else(data: st.DataObject) -> None:
    small = [p for p in programs_of_models() if not p.sizes and len(p.graph.tasks) < 30]
    program = data.draw(st.sampled_from(small))
    i = data.draw(st.integers(0, len(program.graph.tasks) - 1))
    refused_whatever_it_claims(program, i)


def refused_whatever_it_claims(program: Program, i: int) -> None:
    tasks = program.graph.tasks
    for lie in lies(tasks[i]):
        lying = program.graph.replace_tasks((*tasks[:i], lie, *tasks[i + 1 :]))
        with pytest.raises(FileError):
            check_claims(lying, program.sizes)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (replace(RELU, type=of(5)), r"y says that it is f32\[5\].* but it is f32\[4\]"),
        (replace(RELU, type=of(4, dtype=torch.float64)), r"is f64\[4\].* f32\[4\]"),
        (replace(RELU, args=(Ref("x"), 1)), r"y cannot call aten\.relu\.default: "),
        (replace(RELU, reads=()), r"y says that it reads \(\), but that is \(x\)"),
        (replace(RELU, writes=()), r"y says that it writes \(\), but that is \(y\)"),
        (replace(RELU, holds=("x",)), r"y says that it holds \(x\), but that is \(y\)"),
        (replace(RELU, allocates=()), r"y says that it allocates \(\)"),
        (replace(DROPOUT, ordered=False), r"y says that it is ordered: False, but that is True"),
        (replace(RELU, ordered=True), r"y says that it is ordered: True"),
        (replace(VIEW, reads=("x",)), r"y says that it reads \(x\), but that is \(\)"),
        (replace(VIEW, allocates=("y",)), r"y says that it allocates \(y\)"),
        (
            made("y", aten.unbind.int, Ref("x"), type=TupleType((of(),) * 2)),
            "y says that it is 2 tensors, but it is 1000000000000",
        ),
    ],
)
def test_a_lie_is_named_with_what_is_so(task: Task, message: str) -> None:
    huge = task.target == aten.unbind.int
    x = of(10**12) if huge else of(4)
    with pytest.raises(FileError, match=message):
        check_claims(graph_of(task, x=x), {})


ENUMS = {
    "dtype": [99, -1, torch.strided],
    "layout": [77, -1, torch.float32],
    "memory_format": [-1, 99, torch.float32],
}


@pytest.mark.parametrize(("name", "arg"), [(name, arg) for name in ENUMS for arg in ENUMS[name]])
def test_what_is_no_dtype_layout_or_memory_format_is_named(name: str, arg: object) -> None:
    """PyTorch would end the process."""
    copy = replace(RELU, target=aten._to_copy.default, kwargs=((name, arg),))
    with pytest.raises(FileError, match=f"y cannot call aten._to_copy.default: {name} is .*{arg}"):
        check_claims(graph_of(copy, x=of(4)), {})
    unsure = replace(copy, type=replace(of("u0"), stride=(1,)))
    found = made("z", aten.masked_select.default, Ref("x"), Ref("m"), type=of("u0"))
    of_found = replace(unsure, args=(Ref("z"),), reads=("z",))
    with pytest.raises(FileError, match=f"y cannot call .*: {name} is"):
        check_claims(graph_of(found, of_found, x=of(4), m=of(4, dtype=torch.bool)), {})


@pytest.mark.parametrize("task", [RELU, DROPOUT, VIEW], ids=lambda task: str(task.target))
def test_claims_that_match_the_operator_are_accepted(task: Task) -> None:
    check_claims(graph_of(task, x=of(4)), {})


def test_whether_a_reshape_copies_must_follow_from_its_input() -> None:
    view = replace(VIEW, target=aten.reshape.default)
    copy = replace(view, reads=("x",), writes=("y",), allocates=("y",), holds=("y",))
    apart = TensorType((4,), (2,), torch.float32, CPU)
    transposed = TensorType((2, 2), (1, 2), torch.float32, CPU)
    check_claims(graph_of(view, x=of(4)), {})
    check_claims(graph_of(replace(copy, args=(Ref("x"), (4,)), type=of(4)), x=transposed), {})
    with pytest.raises(FileError, match="y says that it"):
        check_claims(graph_of(copy, x=of(4)), {})
    with pytest.raises(FileError, match="y says that it"):
        check_claims(graph_of(replace(view, args=(Ref("x"), (4,)), type=of(4)), x=transposed), {})
    strided = replace(view, type=TensorType((2, 2), (4, 2), torch.float32, CPU))
    check_claims(graph_of(strided, x=apart), {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Input("x", of(4), ()), r"x says that it holds \(\), but that is one storage"),
        (Input("x", of(4), ("x", "z")), r"x says that it holds \(x, z\)"),
        (Input("x", of(4), ("z",)), r"x says that it holds \(z\)"),
        (Input("x", ScalarType("s0"), ("x",)), "holds .* nothing: it is not a tensor"),
        (Input("x", ScalarType("s0"), (), static=True), "it is not a tensor"),
        (Input("x", TupleType(()), ()), "neither tensor nor number"),
        (Input("x", of("s0", 4), ("x",)), "no input is s0|s0 has no value"),
        (Input("x", of(10**19), ("x",)), "x says that it is .*: no tensor is as large"),
        (Input("x", of(2**62), ("x",)), "no tensor is as large"),
        (Input("x", replace(of(2**40, 2**40), stride=(0, 0)), ("x",)), "no tensor is as large"),
    ],
)
def test_an_input_that_can_be_none_is_named(given: Input, message: str) -> None:
    with pytest.raises(FileError, match=message):
        check_claims(TaskGraph("program", (given,), (), (), ()), {"s0": 4})


def test_claims_about_tensors_larger_than_memory_are_accepted() -> None:
    task = replace(RELU, type=of(10**12))
    check_claims(graph_of(task, x=of(10**12)), {})


@pytest.mark.slow
def test_wrong_claims_of_symbolic_programs_are_refused_at_the_sizes_of_one_call() -> None:
    program = next(p for p in programs_of_models() if p.sizes)
    for i, task in enumerate(program.graph.tasks):
        for lie in lies(task):
            tasks = program.graph.tasks
            lying = program.graph.replace_tasks((*tasks[:i], lie, *tasks[i + 1 :]))
            with pytest.raises(FileError):
                check_claims(lying, program.sizes)


def test_sizes_that_data_decide_are_believed_and_kinds_are_not() -> None:
    found = replace(of("u0", 1, dtype=torch.int64), stride=(1, "u0"))
    task = made("y", aten.nonzero.default, Ref("x"), type=found)
    check_claims(graph_of(task, x=of(4)), {})
    with pytest.raises(FileError, match="u0 has no value"):
        check_claims(graph_of(replace(RELU, type=of("u0")), x=of(4)), {})


@pytest.mark.parametrize("items", [(), (of(2),) * 5, None])
def test_an_operator_on_sizes_that_data_decide_has_the_results_of_its_schema(items: Any) -> None:
    """It cannot be called: the size that is assumed for `u0` has no seventh dimension."""
    found = replace(of("u0", 1, dtype=torch.int64), stride=(1, "u0"))
    rows = made("rows", aten.nonzero.default, Ref("x"), type=found)
    several = made("y", aten.max.dim, Ref("rows"), 7, type=items and TupleType(items))
    with pytest.raises(FileError, match=r"y cannot call aten\.max\.dim"):
        check_claims(graph_of(rows, several, x=of(4)), {})


@pytest.mark.parametrize("index", [0.0, True, -1, 2, "0"])
def test_an_item_has_an_index_among_the_results(index: Any) -> None:
    several = made(
        *("y", aten.max.dim, Ref("x"), 0),
        type=TupleType((of(), of(dtype=torch.int64))),
        writes=("y.0", "y.1"),
        allocates=("y.0", "y.1"),
        holds=("y.0", "y.1"),
    )
    item = Task("z", operator.getitem, (Ref("y"), index), type=of(), holds=("y.0",))
    check_claims(graph_of(several, replace(item, args=(Ref("y"), 0)), x=of(4)), {})
    with pytest.raises(FileError, match=f"z selects item {index!r}"):
        check_claims(graph_of(several, item, x=of(4)), {})


def test_functions_of_sizes_are_never_called_where_they_may_fill_the_memory() -> None:
    power = Task("y", operator.pow, (10**9, 10**9), type=ScalarType("7"))
    shift = replace(power, target=operator.lshift)
    factorial = replace(power, target=math.factorial, args=(10**9,))
    repeat = replace(power, target=operator.mul, args=((1, 2), 10**12))
    for task in (power, shift, factorial, repeat):
        check_claims(graph_of(task), {})
    with pytest.raises(FileError, match=r"y says that it is Sym\(7\), but it is 6"):
        check_claims(graph_of(replace(power, target=operator.mul, args=(2, 3))), {})


def test_numbers_that_grow_from_task_to_task_are_refused_while_they_are_small() -> None:
    tasks = [Task("t0", operator.mul, (3, 3), type=ScalarType("u0"))]
    for i in range(1, 60):
        last = Ref(f"t{i - 1}")
        tasks.append(Task(f"t{i}", operator.mul, (last, last), type=ScalarType("u0")))
    with pytest.raises(FileError, match="t5 is a number larger than any size"):
        check_claims(graph_of(*tasks, n=ScalarType("u0")), {})


def test_a_number_of_any_length_is_no_size() -> None:
    graph = graph_of(RELU, x=of(4), n=ScalarType("9" * 9999))
    check_claims(graph, {})


def test_asking_draws_no_random_numbers() -> None:
    state = torch.get_rng_state()
    check_claims(graph_of(DROPOUT, x=of(4)), {})
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("operator", [aten.split.Tensor, aten.chunk.default, aten.unbind.int])
def test_a_split_without_arguments_is_refused(operator: Any) -> None:
    task = Task("parts", operator, type=TupleType((of(2), of(2))))
    with pytest.raises(FileError, match="parts cannot call aten"):
        check_claims(graph_of(task), {})
