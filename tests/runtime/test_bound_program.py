"""Bound programs refuse parameters and inputs that do not fit, by name."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import nimble_fx
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import InputError, UnsupportedError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import Input, Ref, TaskGraph
from nimble_fx.runtime.bound_program import BoundProgram
from nimble_fx.runtime.capture.status import CaptureStatus
from tests.support.bits import assert_same_bits
from tests.support.models import CASES, Branchy

X, TABLE = torch.ones(2, 4), torch.full((3,), 2.0)
INFERRED = [name for name in CASES if name != "lstm"]  # which is not traced by default
IN_THE_GRAPH = {"views": (0, 1, 3, 7)}
"""Outputs that the graph makes, where Dynamo makes others around it."""


def compiled(
    model: nn.Module, *inputs: Any, options: dict[str, Any] | None = None, dynamic: bool = False
) -> nimble_fx.Program:
    """The program of a model with PyTorch's kernels, which give eager's bits."""
    every = {"fold_weights": False, **(options or {})}
    with torch.no_grad():
        torch.compile(model, backend="nimble", options=every, dynamic=dynamic or None)(*inputs)
    return nimble_fx.programs()[-1]


def test_a_bound_program_gives_the_models_results_with_other_parameters() -> None:
    program, other = compiled(Branchy(), X), Branchy()
    run = program.bind(other)
    for x in (X, torch.randn(2, 4)):
        assert_same_bits(run(x), [other(x).detach()])


@pytest.mark.parametrize("name", INFERRED)
def test_a_loaded_program_gives_eagers_bits(name: str, tmp_path: Path) -> None:
    model, inputs = CASES[name].model().eval(), CASES[name].inputs()
    bound, given = copy.deepcopy((model, inputs))
    program = compiled(copy.deepcopy(model), *copy.deepcopy(inputs))
    run = nimble_fx.load(program.save(tmp_path / "program.json")).bind(bound)
    for _ in range(2):
        torch.manual_seed(1)
        ours = run(*given)
        torch.manual_seed(1)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(*inputs))
        chosen = IN_THE_GRAPH.get(name, range(len(expected)))
        assert_same_bits(ours[: len(chosen)], [expected[i] for i in chosen])
        assert_same_bits(given, inputs)
        assert_same_bits(dict(bound.state_dict()), dict(model.state_dict()))


def test_parameters_are_found_by_the_models_names_and_the_graphs() -> None:
    program, model = compiled(Branchy(), X), Branchy()
    assert program.parameters == {"a_weight": "a.weight", "b_weight": "b.weight"}
    expected = program.bind(model)(X)
    by_path = {"a.weight": model.a.weight, "b.weight": model.b.weight}
    by_name = {"a_weight": model.a.weight, "b_weight": model.b.weight}
    for parameters in (by_path, by_name, by_path | {"c.weight": X}):
        assert_same_bits(program.bind(parameters)(X), expected)


def test_what_torch_compile_made_of_the_model_is_bound_as_the_model() -> None:
    model = Branchy()
    program = compiled(model, X)
    optimized: Any = torch.compile(model)
    assert_same_bits(program.bind(optimized)(X), program.bind(model)(X))


def test_no_gradients_are_recorded() -> None:
    (y,) = compiled(Branchy(), X).bind(Branchy())(X.clone().requires_grad_())
    assert not y.requires_grad


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (None, r"needs the parameter a.weight: f32.4, 4., which is not among the 1 .*\(b.weight\)"),
        (torch.ones(4, 5), r"a\.weight has the shape \[4, 5\]"),
        (torch.ones(4), r"a\.weight has the number of dimensions 1, .* compiled for 2"),
        (torch.ones(4, 4).t(), r"a\.weight has the stride \[1, 4\]"),
        (torch.ones(4, 4, dtype=torch.float64), r"a\.weight has the dtype f64"),
        (torch.ones(4, 4, dtype=torch.float64).t(), r"a\.weight has the dtype f64"),
        (torch.ones(4, 4, device="meta"), r"a\.weight has the device meta, .* for cpu"),
        (torch.ones(4, 4).to_sparse(), r"a\.weight has the layout torch\.sparse_coo"),
        ([[1.0]], r"a\.weight is of type list, not a tensor"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named(weight: Any, message: str) -> None:
    program, b = compiled(Branchy(), X), torch.ones(4, 4)
    given = {"b.weight": b} if weight is None else {"a.weight": weight, "b.weight": b}
    with pytest.raises(InputError, match=message):
        program.bind(given)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), r"Branchy.forward takes 1 input \(x\), not 0"),
        ((X, X), r"takes 1 input \(x\), not 2"),
        ((torch.ones(3, 4),), r"input x has the shape \[3, 4\], .* for \[2, 4\]"),
        ((X.double(),), "input x has the dtype f64"),
        ((X.to("meta"),), "input x has the device meta"),
        ((7,), "input x is of type int, not a tensor"),
    ],
)
def test_an_input_that_does_not_fit_is_named(inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compiled(Branchy(), X).bind(Branchy())(*inputs)


@pytest.mark.parametrize("lazily", [torch.conj, lambda z: z.conj().imag, lambda z: z])
def test_a_loaded_program_takes_inputs_conjugated_and_negated_as_the_examples(
    lazily: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.resolve_conj().resolve_neg() + 1, torch.view_as_real(x + 0j), x * 2

    z = torch.randn(3, dtype=torch.complex64)
    torch.compile(program, backend="nimble")(lazily(z.clone()))
    path = nimble_fx.programs()[-1].save(tmp_path / "program.json")
    run = nimble_fx.load(path).bind({})
    assert_same_bits(run(lazily(z)), [*program(lazily(z))])
    with pytest.raises(InputError, match=r"has the (conjugate|negative) bit .*, .* compiled for"):
        run(lazily(z.conj()))


def test_where_a_size_is_1_its_stride_may_be_anything() -> None:
    program, model = compiled(Branchy(), torch.ones(1, 4)), Branchy()
    x = torch.randn(1, 4).as_strided((1, 4), (9, 1))
    assert_same_bits(program.bind(model)(x), [model(x).detach()])


def test_symbolic_sizes_are_read_off_the_tensors() -> None:
    program, model = compiled(Branchy(), torch.ones(3, 4), dynamic=True), Branchy()
    kinds = [type(value.type).__name__ for value in program.graph.inputs if not value.static]
    assert sorted(kinds) == ["ScalarType", "TensorType"]
    run = program.bind(model)
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        assert_same_bits(run(x), [model(x).detach()])
    with pytest.raises(InputError, match=r"the shape \[2, 5\], and .* for \[s\d+, 4\]"):
        run(torch.ones(2, 5))


def test_strides_that_go_with_symbolic_sizes_are_checked() -> None:
    def rows(x: Tensor) -> Tensor:
        return torch.as_strided(x * 2, (x.shape[0],), (x.stride(0),)) + x[:, 0]

    x = torch.arange(12.0).view(3, 4)
    with torch.no_grad():
        torch.compile(rows, backend="nimble", dynamic=True)(x)
    run = nimble_fx.programs()[-1].bind({})
    taller = torch.arange(20.0).view(5, 4)
    assert_same_bits(run(taller), [rows(taller)])
    with pytest.raises(InputError, match=r"input x has the stride 1 where .* compiled for"):
        run(torch.arange(20.0).view(4, 5).t())


@pytest.mark.parametrize("rows", [0, 1, 5, 7])
def test_sizes_that_are_expressions_of_symbols_are_checked(rows: int) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, x]) + y

    torch.compile(program, backend="nimble", dynamic=True)(torch.ones(3, 4), torch.ones(6, 4))
    bound = nimble_fx.programs()[-1].bind({})
    x, y = torch.ones(2, 4), torch.ones(4, 4)
    assert torch.equal(bound(x, y)[0], program(x, y))
    with pytest.raises(InputError, match=rf"y has the size {rows} .* 2\*s\d+, which is 4"):
        bound(x, torch.ones(rows, 4))


def test_inputs_that_share_memory_are_refused_where_one_is_written() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) + y

    with torch.no_grad():
        torch.compile(add, backend="nimble")(torch.zeros(4), torch.zeros(4))
    run = nimble_fx.programs()[-1].bind({})
    x = torch.zeros(4)
    assert_same_bits(run(x, torch.ones(4)), [torch.full((4,), 2.0)])
    with pytest.raises(InputError, match=r"x and y share memory, which .*add writes"):
        run(x, x)


def test_an_input_that_was_none_stays_none() -> None:
    graph = TaskGraph("program", (Input("x", None),), (), (), (Ref("x"),))
    program = ScheduledProgram(graph, source="", device="cpu")
    run = BoundProgram(program, {}, Cpu(), lambda values: values, CaptureStatus())
    assert run(None) == [None]
    with pytest.raises(InputError, match="input x is of type Tensor, and was compiled for None"):
        run(X)


def test_symbolic_sizes_of_two_tensors_must_agree() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    x = torch.ones(3, 4)
    with torch.no_grad():
        torch.compile(program, backend="nimble", dynamic=True)(x, x.clone())
    run = nimble_fx.programs()[-1].bind({})
    assert_same_bits(run(torch.ones(5, 4), torch.ones(5, 4)), [torch.full((5, 4), 2.0)])
    with pytest.raises(InputError, match=r"has the size 2 for s\d+, which is 5 elsewhere"):
        run(torch.ones(5, 4), torch.ones(2, 4))


def test_a_forward_and_a_backward_program_make_a_training_step(tmp_path: Path) -> None:
    model, x = Branchy(), torch.randn(2, 4)
    torch.compile(model, backend="nimble")(x).sum().backward()
    forward, backward = (
        nimble_fx.load(program.save(tmp_path / f"{i}.json"))
        for i, program in enumerate(nimble_fx.programs())
    )
    names = [value.name for value in backward.graph.inputs]
    returned = [ref.name for ref in forward.graph.outputs]
    values = dict(zip(returned, forward.bind(model)(x), strict=True)) | {"x": x}
    given = [values.get(name, torch.ones(2, 4)) for name in names]
    assert names[-1] == "tangents_1"
    gradients = backward.bind({})(*given)
    expected = [p.grad for p in model.parameters()]
    assert_same_bits([g for g in gradients if g is not None], expected)


class Counts(nn.Module):
    """Two buffers, of which one is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen: Tensor
        self.scale: Tensor
        read = x * self.scale
        self.seen += 1
        return read


def test_buffers_that_share_memory_by_now_are_refused_where_one_is_written() -> None:
    program, model = compiled(Counts(), X), Counts()
    program.bind(model)
    model.seen = model.scale
    with pytest.raises(InputError, match=r"share memory, which Counts\.forward writes"):
        program.bind(model)


def test_parameters_that_share_memory_by_now_are_read_where_none_is_written() -> None:
    program, tied = compiled(Branchy(), X), Branchy()
    tied.b = tied.a
    assert_same_bits(program.bind(tied)(X), [tied(X).detach()])


@pytest.mark.parametrize("freeze", [True, False])
def test_a_bound_program_is_frozen_if_the_device_can_and_the_option_allows_it(freeze: bool) -> None:
    program = compiled(Branchy(), X, options={"device": "virtual", "freeze": freeze})
    bound = program.bind(Branchy())
    bound(X)
    assert bound.status.frozen == freeze
    assert bound.status is not program.status


def test_it_is_frozen_even_if_calls_of_the_program_ran_unfrozen() -> None:
    options: dict[str, Any] = {"device": "virtual", "max_graphs": 1, "on_fallback": "silent"}
    run = torch.compile(nn.ReLU(), backend="nimble", options=options, dynamic=True)
    for n in range(2, 20):  # more sizes than are captured
        run(torch.ones(n, 4))
    program = nimble_fx.programs()[-1]
    assert program.status.reason is not None
    bound = program.bind({})
    bound(torch.ones(2, 4))
    assert (bound.status.frozen, bound.status.reason) == (True, None)


@pytest.mark.parametrize("nothing", [None, [torch.ones(1)], "weight"])
def test_what_holds_no_parameters_by_name_is_refused(nothing: Any) -> None:
    program = compiled(Branchy(), torch.ones(3, 4))
    with pytest.raises(InputError, match="bind takes a module, or a mapping of tensors by name"):
        program.bind(nothing)


@pytest.mark.parametrize("number", [7.5, True, 2**63, -(2**70), "7"])
def test_a_number_that_is_a_size_must_be_an_integer(number: Any) -> None:
    def program(x: Tensor, n: int) -> Tensor:
        return x.new_zeros(n) + x.sum()

    program_ = compiled(program, torch.ones(3), 7, dynamic=True)  # type: ignore[arg-type]
    run = program_.bind({})
    assert_same_bits(run(torch.ones(3), 9), [torch.full((9,), 3.0)])
    with pytest.raises(InputError, match=r"integer of 64 bits|of type str"):
        run(torch.ones(3), number)


def test_folded_weights_whose_strides_change_in_place_are_refused() -> None:
    model, x = nn.Linear(512, 512, bias=False), torch.randn(4, 512)
    run = compiled(model, x, options={"fold_weights": True}).bind(model)
    run(x)
    model.weight.data = model.weight.data.t()
    with pytest.raises(InputError, match="weight has the stride"):
        run(x)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_neither_pickled_nor_copied(duplicate: Callable[[object], object]) -> None:
    with pytest.raises(UnsupportedError, match=r"Branchy\.forward with its parameters cannot be"):
        duplicate(compiled(Branchy(), X).bind(Branchy()))


def test_a_tensor_that_is_neither_parameter_nor_buffer_is_bound_by_its_own_name() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["table"] = TABLE

        def forward(self, x: Tensor) -> Tensor:
            table: Any = self.table
            result: Tensor = x * table
            return result

    model = Scaled()
    program = compiled(model, torch.ones(3))
    (name,) = [value.name for value in program.graph.inputs if value.static]
    with pytest.raises(InputError, match="if that is a parameter or buffer of it"):
        program.bind(model)
    assert_same_bits(program.bind({name: TABLE})(torch.ones(3)), [TABLE])


@pytest.mark.parametrize("options", [{}, {"device": "virtual"}])
def test_autograd_notices_that_a_call_has_written_a_buffer(options: dict[str, Any]) -> None:
    model, weight = Counts(), torch.ones(4, requires_grad=True)
    run = compiled(model, X, options=options).bind(model)
    for _ in range(2):
        run(X)
    loss = (weight * model.seen).sum()
    run(X)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"device": "virtual"}, {"kernels": "inductor"}])
def test_autograd_notices_that_a_call_has_written_an_argument(options: dict[str, Any]) -> None:
    def adds(x: Tensor) -> Tensor:
        return x.add_(1) * 2

    x, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    run = nimble_fx.compile(adds, x, **options).programs[0].bind({})
    run(x)
    loss = (weight * x).sum()
    run(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
