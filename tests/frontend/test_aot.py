"""`nimble_fx.compile` returns eager's results from the first call on, and changes no state."""

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import FallbackError, NimbleWarning, OptionError
from nimble_fx.runtime.capture.freeze import FrozenProgram
from nimble_fx.runtime.launch import Launcher
from tests.support.eager import (
    assert_calls_are_eagers,
    assert_same,
    assert_steps_are_eagers,
    call,
    twins,
)
from tests.support.models import CASES, Branchy, Case
from tests.support.snapshot import snapshot

_T = TypeVar("_T")

DEVICES: list[dict[str, Any]] = [{}, {"device": "virtual", "seed": 3}]


@pytest.fixture(autouse=True)
def _trace_rnns() -> Iterator[None]:
    """By default Dynamo leaves torch.nn.LSTM to eager."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def frozen(programs: tuple[nimble_fx.Program, ...]) -> list[bool]:
    return [program.status.frozen for program in programs]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, DEVICES[1]) for name in CASES),
        *((name, DEVICES[0]) for name in ("branchy", "cache", "lstm")),
    ],
    ids=str,
)
def test_inference_is_eagers_and_nothing_is_compiled_by_calls(
    name: str, options: dict[str, Any]
) -> None:
    case = CASES[name]
    model, eager = twins(case, train=False)
    compiled = nimble_fx.compile(model, case.inputs(), **options)
    assert len(compiled.programs) == 1
    assert frozen(compiled.programs) == [bool(options)]
    assert_calls_are_eagers(compiled, model, eager, case)
    assert len(compiled.programs) == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, DEVICES[1]) for name, case in CASES.items() if case.trainable),
        *((name, DEVICES[0]) for name in ("branchy", "dropout")),
    ],
    ids=str,
)
def test_training_is_eagers_and_nothing_is_compiled_by_calls(
    name: str, options: dict[str, Any]
) -> None:
    case = CASES[name]
    model, eager = twins(case, train=True)
    compiled = nimble_fx.compile(model, case.inputs(), training=True, **options)
    assert [p.name.split()[-1] for p in compiled.programs] == ["(training)", "(backward)"]
    assert frozen(compiled.programs) == [bool(options)] * 2
    assert_steps_are_eagers(compiled, model, eager, case)
    assert len(compiled.programs) == 2


@pytest.mark.parametrize("name", ["branchy", "cache", "dropout", "lstm", "views"])
def test_the_module_that_runs_is_the_one_of_torch_compile(name: str) -> None:
    case = CASES[name]
    model, inputs = case.model().eval(), case.inputs()
    (program,) = nimble_fx.compile(model, inputs).programs
    with torch.no_grad():
        torch.compile(model, backend="nimble")(*case.inputs())
    assert program.source == nimble_fx.programs()[-1].source


def test_inputs_inside_of_arguments_are_named_after_them() -> None:
    def program(x: Tensor, extra: dict[str, Any]) -> Tensor:
        return x + extra["low"] * extra["high"][0]

    extra = {"low": torch.ones(2), "high": [torch.ones(2)]}
    (made,) = nimble_fx.compile(program, (torch.ones(2), extra)).programs
    assert {value.name for value in made.graph.inputs} == {"x", "extra_low", "extra_high_0"}


@pytest.mark.gpu
@pytest.mark.parametrize("training", [False, True])
def test_on_a_gpu_all_is_frozen_by_then_and_random_numbers_are_as_they_were(training: bool) -> None:
    case = CASES["dropout"]
    model, eager = twins(case, train=training, device="cuda")
    x = case.inputs()[0].to("cuda")
    state = torch.cuda.get_rng_state().tolist()
    compiled = nimble_fx.compile(model, x, training=training)
    assert torch.cuda.get_rng_state().tolist() == state
    assert all(frozen(compiled.programs))
    with torch.set_grad_enabled(training):
        assert_same(call(compiled, (x,)), call(eager, (x,)))


class Raises(nn.Module):
    """Writes to everything, and then fails in a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.table = nn.BatchNorm1d(4), nn.Embedding(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(torch.rand_like(x) + x.mul_(2))
        return result + self.table(torch.full((2,), 7))


PREPARED = {**CASES, "raises": Case(Raises, lambda: (torch.randn(2, 4),))}


PREPARINGS = [
    *((name, False, DEVICES[1]) for name in PREPARED),
    *((name, True, DEVICES[1]) for name in ("branchy", "googlenet", "dropout")),
    *((name, False, DEVICES[0]) for name in ("mutates", "raises", "dropout")),
    *((name, True, DEVICES[0]) for name in ("googlenet", "raises")),
]


@pytest.mark.parametrize(("name", "train", "options"), PREPARINGS, ids=str)
def test_preparing_leaves_state_gradients_random_numbers_and_inputs_as_they_were(
    name: str, train: bool, options: dict[str, Any]
) -> None:
    case = PREPARED[name]
    model, inputs = case.model().train(train), case.inputs()
    for tensor in [*model.parameters(), *inputs]:
        if tensor.is_floating_point():
            tensor.grad = torch.randn_like(tensor)
    before = snapshot(model, inputs)
    try:
        nimble_fx.compile(model, inputs, training=train, **options)
    except OptionError:
        assert name == "raises"
    else:
        assert name != "raises"
    assert snapshot(model, inputs) == before


def test_gradients_that_are_none_stay_so_and_hooks_on_them_are_not_called() -> None:
    model, x = Branchy(), torch.randn(2, 4, requires_grad=True)
    called: list[Tensor] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(called.append)
    nimble_fx.compile(model, x, training=True)
    assert [leaf.grad for leaf in (x, *model.parameters())] == [None] * 3
    assert not called


def test_inference_runs_without_gradients_whatever_the_callers_mode() -> None:
    compiled, x = nimble_fx.compile(Branchy(), torch.randn(2, 4)), torch.randn(2, 4)
    assert not compiled(x).requires_grad
    with torch.no_grad():
        compiled(x)
    assert len(compiled.programs) == 1


def test_other_shapes_compile_again() -> None:
    model = Branchy()
    compiled = nimble_fx.compile(model, torch.randn(2, 4))
    for rows in (3, 5, 2):
        x = torch.randn(rows, 4)
        assert_same(compiled(x), model(x).detach())
    assert len(compiled.programs) == 2


def test_sizes_seen_by_one_compile_make_none_symbolic_in_the_next() -> None:
    made = [nimble_fx.compile(Branchy(), torch.randn(rows, 4), device="virtual") for rows in (2, 3)]
    assert [frozen(compiled.programs) for compiled in made] == [[True], [True]]


@pytest.mark.slow
def test_as_many_models_of_one_class_as_one_likes_are_compiled() -> None:
    many = torch._dynamo.config.recompile_limit + 3
    made = [nimble_fx.compile(Branchy(), torch.randn(2, 4)) for _ in range(many)]
    assert [len(compiled.programs) for compiled in made] == [1] * many


def test_inputs_are_a_tensor_a_tuple_a_list_or_keywords() -> None:
    def program(x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> Tensor:
        return (x if y is None else x + y) * scale

    x, y = torch.randn(3), torch.randn(3)
    for example, args, kwargs in (
        (x, (x,), {}),
        ((x, y), (x, y), {}),
        ([x, y], (x, y), {}),
        ({"x": x, "scale": 2.0}, (), {"x": x, "scale": 2.0}),
    ):
        compiled = nimble_fx.compile(program, example)
        assert_same(compiled(*args, **kwargs), program(*args, **kwargs))  # type: ignore[arg-type]
        (made,) = compiled.programs
        assert {value.name for value in made.graph.inputs} <= {"x", "y"}
        assert made.name.endswith("program")


def test_options_reach_the_schedule() -> None:
    x = torch.randn(2, 4)
    assert nimble_fx.compile(Branchy(), x, policy="nimble").programs[0].graph.n_streams == 2
    assert nimble_fx.compile(Branchy(), x, policy="serial").programs[0].graph.n_streams == 1


def test_a_model_that_pytorch_leaves_to_eager_is_a_fallback() -> None:
    def program(x: Tensor) -> Tensor:
        return x + 1

    disabled: Any = torch.compiler.disable(program)
    with pytest.warns(NimbleWarning, match="program runs in eager: PyTorch found no graph in it"):
        compiled = nimble_fx.compile(disabled, torch.ones(2))
    assert [fallback.runs for fallback in nimble_fx.fallbacks()] == ["in eager"]
    assert_same(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_the_warning_says_why_pytorch_found_no_graph() -> None:
    def program(x: Tensor) -> Tensor:
        for row in torch.arange(2):
            x = x + torch.where(x > row)[0].sum()
        return x

    with pytest.warns(NimbleWarning, match="program runs in eager.*capture_dynamic_output_shape"):
        nimble_fx.compile(program, torch.ones(2))


def test_attributes_of_the_model_are_looked_for_in_the_model() -> None:
    compiled = nimble_fx.compile(Branchy(), torch.randn(2, 4))
    with pytest.raises(AttributeError, match=r"'state_dict'; the model is its attribute \.model"):
        compiled.state_dict()
    with pytest.raises(AttributeError, match=r"no attribute 'no_such'$"):
        compiled.no_such()


def test_a_fallback_that_is_asked_to_be_an_error_is_one_and_leaves_all_as_it_was() -> None:
    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            return torch.cond(y.sum() > 0, torch.cos, torch.sin, (y,))

    model, x = Conditional(), torch.randn(2, 3)
    before = snapshot(model, (x,))
    with pytest.raises(FallbackError, match="higher-order operator"):
        nimble_fx.compile(model, x, on_fallback="error")
    assert snapshot(model, (x,)) == before
    with pytest.warns(NimbleWarning, match="higher-order operator") as caught:
        compiled = nimble_fx.compile(model, x)
    assert len(caught) == 1
    with torch.no_grad():
        assert_same(compiled(x), copy.deepcopy(model)(x))


def patiently(compiles: Callable[[], _T]) -> _T:
    """Calls until no other thread traces: that stops this one in PyTorch before 2.14."""
    while True:
        try:
            return compiles()
        except RuntimeError as error:
            if "you are using FX to symbolically trace" not in str(error):
                raise


def test_programs_are_those_of_the_object_and_no_others() -> None:
    def work(cell: Case, made: list[nimble_fx.Compiled]) -> None:
        model, inputs = cell.model().eval(), cell.inputs()
        made.append(patiently(lambda: nimble_fx.compile(model, inputs)))

    made: dict[str, list[nimble_fx.Compiled]] = {n: [] for n in ("branchy", "googlenet", "tables")}
    before = nimble_fx.programs()
    threads = [threading.Thread(target=work, args=(CASES[n], made[n])) for n in made]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        compiled = torch.compile(Branchy(), backend="nimble")
        patiently(lambda: compiled(torch.randn(7, 4)))
    for thread in threads:
        thread.join()
    names = {name: [p.name for p in ours[0].programs] for name, ours in made.items()}
    assert names == {
        "branchy": ["Branchy.forward"],
        "googlenet": ["GoogLeNet.forward"],
        "tables": ["Tables.forward"],
    }
    own = [program for ours in made.values() for program in ours[0].programs]
    others = [p for p in nimble_fx.programs() if p not in (*before, *own)]
    assert [program.name for program in others] == ["Branchy.forward"]


def test_a_reset_empties_the_programs_and_the_next_call_compiles() -> None:
    compiled, x = nimble_fx.compile(Branchy(), torch.randn(2, 4)), torch.randn(2, 4)
    for _ in range(3):
        torch.compiler.reset()
        assert compiled.programs == ()
        assert nimble_fx.programs() == ()
        compiled(x)
        assert len(compiled.programs) == 1


def running() -> int:
    """How many programs are loaded and ready to run."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that gc lists
        return sum(type(value) in (Launcher, FrozenProgram) for value in gc.get_objects())


@pytest.mark.parametrize("options", DEVICES, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_deleting_it_frees_its_graphs_and_the_model(
    training: bool, options: dict[str, Any]
) -> None:
    before, model = running(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compiled = nimble_fx.compile(model, torch.randn(2, 4), training=training, **options)
    assert running() > before
    parameter = weakref.ref(model[0].weight)
    del model, compiled
    assert running() == before
    assert parameter() is None
    assert nimble_fx.programs() == ()


def test_its_repr_says_what_it_is_and_what_it_has() -> None:
    compiled = nimble_fx.compile(Branchy(), torch.randn(2, 4), training=True, policy="nimble")
    text = repr(compiled)
    assert text.splitlines() == [
        "<nimble_fx.compile Branchy for training: 2 programs",
        "  <Program Branchy.forward (training) of x f32[2, 4]: 2 streams, cpu>",
        "  <Program Branchy.forward (backward) of x f32[2, 4], detach_2 f32[2, 4], "
        "detach_3 f32[2, 4], 1 more: 2 streams, cpu>>",
    ]


def test_a_graph_break_leaves_all_parts_compiled() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sin()
            torch._dynamo.graph_break()
            return y.cos()

    model, x = Broken(), torch.randn(3)
    compiled = nimble_fx.compile(model, x, on_fallback="silent")
    assert len(compiled.programs) == 2
    assert_same(compiled(x), model(x))
    assert len(compiled.programs) == 2
