"""The whole backend: every model gives eager's results, gradients, mutations and state."""

import copy
import importlib.metadata
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.emit import emit
from nimble_fx.errors import NimbleWarning, OptionError, ScheduleError
from nimble_fx.ir import TaskGraph
from nimble_fx.passes.insert_waits import InsertWaits
from nimble_fx.pipeline import passes, schedule
from nimble_fx.trace import trace
from nimble_fx.verify import verify
from tests.eager import (
    assert_inference_is_eagers,
    assert_same,
    assert_training_is_eagers,
    call,
    twins,
)
from tests.models import CASES, Branchy, Case, Inception, Lstm
from tests.oracle import fewest_waits
from tests.schedules import aten_graph
from tests.threads import assert_threads_do_not_mix


@pytest.fixture(autouse=True)
def _trace_rnns() -> Iterator[None]:
    """By default Dynamo leaves torch.nn.LSTM to eager; AOTAutograd traces its inference only."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.fixture(autouse=True)
def _no_fallback_unless_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NimbleWarning)
        yield


def widths_hold() -> None:
    """What policy "nimble" promises, on every program compiled so far."""
    for program in nimble_fx.programs():
        program.verify()
        nimble_fx.verify_source(program.source)  # alone
        assert program.graph.n_streams == program.graph.width
        assert program.graph.n_waits == fewest_waits(program.graph)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", [{}, {"policy": "serial"}, {"max_streams": 2}], ids=str)
def test_inference_is_eagers(name: str, options: dict[str, Any]) -> None:
    assert_inference_is_eagers(CASES[name], options)
    assert nimble_fx.programs()
    assert all(p.graph.n_streams <= options.get("max_streams", 99) for p in nimble_fx.programs())
    if not options:
        widths_hold()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.trainable])
def test_training_is_eagers(name: str) -> None:
    assert_training_is_eagers(CASES[name])
    assert len(nimble_fx.programs()) == 2
    widths_hold()


def test_pytorchs_own_lstm_trains_where_dynamo_leaves_it_to_eager() -> None:
    case = Case(Lstm, CASES["lstm"].inputs)
    model, eager = twins(case, train=True)
    x = torch.randn(2, 4, 6)
    with torch._dynamo.config.patch(allow_rnn=False):
        torch.compile(model, backend="nimble")(x).sum().backward()
    eager(x).sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert_same(p.grad, q.grad)


def test_new_shapes_are_served_by_symbolic_sizes() -> None:
    model, eager = twins(CASES["branchy"], train=False)
    compiled = torch.compile(model, backend="nimble", dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 5, 8):
            x = torch.randn(rows, 4)
            assert_same(compiled(x), eager(x))
    assert len(nimble_fx.programs()) == 1


def test_a_float_that_changes_between_calls_is_scheduled() -> None:
    def program(x: Tensor, temperature: float) -> Tensor:
        return (x.t() / temperature).t().softmax(-1)

    compiled, x = torch.compile(program, backend="nimble"), torch.randn(3, 4, requires_grad=True)
    for temperature in (1.0, 2.0, 3.0):
        (ours,) = torch.autograd.grad(compiled(x, temperature).square().sum(), x)
        (expected,) = torch.autograd.grad(program(x, temperature).square().sum(), x)
        assert_same(ours, expected)
    widths_hold()


def test_batch_norm_in_training_opens_no_streams_for_its_bookkeeping() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3))
    torch.compile(model, backend="nimble")(torch.randn(2, 3, 4, 4)).sum()
    (forward,) = nimble_fx.programs()
    assert forward.graph.n_streams == 1


class Residual(nn.Module):
    """Two normalised branches that an addition joins."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.right = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.left(x) + self.right(x))


def test_bookkeeping_of_branches_that_join_opens_no_streams() -> None:
    model = nn.Sequential(Residual(), Residual(), Residual())
    torch.compile(model, backend="nimble")(torch.randn(2, 3, 4, 4)).sum()
    (forward,) = nimble_fx.programs()
    assert forward.graph.n_streams == 2


def test_programs_are_listed_oldest_first_and_reset_clears_them() -> None:
    model = Branchy()
    torch.compile(model, backend="nimble")(torch.randn(2, 4)).sum().backward()
    names = [program.name for program in nimble_fx.programs()]
    assert names == ["Branchy.forward (training)", "Branchy.forward (backward)"]
    torch.compiler.reset()
    assert nimble_fx.programs() == ()


def test_the_programs_inputs_have_the_users_names() -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble")(torch.randn(2, 4))
    inputs = {v.name: v.static for v in nimble_fx.programs()[0].graph.inputs}
    assert inputs == {"x": False, "a_weight": True, "b_weight": True}


def test_a_torch_function_mode_is_applied_once() -> None:
    class Doubles(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.relu else result

    compiled = torch.compile(lambda x: torch.relu(x), backend="nimble")
    with torch.no_grad(), Doubles():
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_custom_operators_run_in_program_order() -> None:
    seen: list[float] = []
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("log(Tensor x) -> Tensor")

        def log(x: Tensor) -> Tensor:
            seen.append(float(x.sum()))
            return x + torch.rand_like(x)

        library.impl("log", log, "CPU")
        library.impl("log", torch.empty_like, "Meta")

        def program(x: Tensor) -> Tensor:
            op = torch.ops.nimble_tests.log.default
            return op(x) + op(x.exp().sin().cos()) + op(x * 2) + torch.rand_like(x)

        x = torch.randn(3)
        with torch.no_grad():
            assert_same(call(torch.compile(program, backend="nimble"), (x,)), call(program, (x,)))
    assert seen[:3] == seen[3:]


def test_names_that_python_reads_as_others_do_no_harm() -> None:
    class Greek(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d = nn.ParameterDict({"\u00b5": torch.ones(2), "\u03bc": torch.full((2,), 2.0)})

        def forward(self, x: Tensor) -> Tensor:
            return x * self.d["\u00b5"] - self.d["\u03bc"]

    model, x = Greek(), torch.randn(2)
    assert_same(torch.compile(model, backend="nimble")(x), model(x))
    assert nimble_fx.programs()


def test_a_users_name_that_is_a_nodes_name_in_the_backward_does_no_harm() -> None:
    def program(mul: Tensor, t: Tensor, add: Tensor) -> Tensor:
        return (mul * t + add).exp()

    inputs = [torch.randn(3, requires_grad=True) for _ in range(3)]
    torch.compile(program, backend="nimble")(*inputs).sum().backward()
    grads = [x.grad for x in inputs]
    expected = torch.autograd.grad(program(*inputs).sum(), inputs)
    assert_same(grads, list(expected))
    assert len(nimble_fx.programs()) == 2


def test_a_long_chain_of_views_is_no_deep_recursion() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(1200):
            x = x.t()
        return x.relu()

    x = torch.randn(2, 3)
    gm = aten_graph(program, x)
    graph = schedule(trace(gm).graph, passes("nimble", None))
    verify(graph)
    assert len(graph.launching) == 1


def test_the_same_model_gives_the_same_text_twice() -> None:
    texts = []
    for _ in range(2):
        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(Inception().eval(), backend="nimble")(torch.randn(1, 8, 4, 4))
        texts.append(nimble_fx.programs()[0].source)
    assert texts[0] == texts[1]


def test_dump_writes_the_module_that_runs(tmp_path: Path) -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options={"dump": str(tmp_path)})(
            torch.randn(2, 4)
        )
    (program,) = nimble_fx.programs()
    assert program.path is not None
    assert program.path.parent == tmp_path
    assert program.path.read_text() == program.source
    assert str(program.path) in program.summary()


@pytest.mark.parametrize("options", [{"polcy": 1}, {"policy": "x"}, {"max_streams": -1}])
def test_a_bad_option_reaches_the_user_as_it_is(options: dict[str, Any]) -> None:
    compiled = torch.compile(Branchy(), backend="nimble", options=options)
    with pytest.raises(OptionError, match=r"valid|takes"):
        compiled(torch.randn(2, 4))
    assert nimble_fx.programs() == ()


def test_a_mode_it_does_not_know_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="valid modes: 'default'"):
        torch.compile(Branchy(), backend="nimble", mode="max-autotune")(torch.randn(2, 4))


class Conditional(nn.Module):
    """A higher-order operator."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))  # the user's line


class Moves(nn.Module):
    """Two devices."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to("meta").sum().to("meta") * 2


@pytest.mark.parametrize(
    ("model", "x", "named"),
    [
        (Conditional(), torch.ones(3), r"cond.*higher-order operator.*the user's line"),
        (Moves(), torch.ones(3), "second device"),
    ],
)
def test_what_cannot_be_scheduled_runs_as_traced_and_says_why_once(
    model: nn.Module, x: Tensor, named: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(model, backend="nimble")
        results = [compiled(x) for _ in range(3)]
    messages = [str(w.message) for w in caught if w.category is NimbleWarning]
    assert len(messages) == 1
    assert "runs as traced" in messages[0]
    assert re.search(named, messages[0])
    expected = model(x)
    assert all(r.device == expected.device and r.shape == expected.shape for r in results)
    if expected.device.type == "cpu":
        assert torch.equal(results[0], expected)


def complex_numbers(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.fft(x) * 1j).sum(0)


def data_dependent(x: Tensor) -> Tensor:
    positive = x[x > 0]
    return positive.unique().sum() * positive.shape[0]


def reads_a_number(x: Tensor) -> Tensor:
    return x * x.sum().item()


def sparse(x: Tensor) -> Tensor:
    return torch.sparse.mm(x.to_sparse(), x)


def nested(x: Tensor) -> Tensor:
    pieces = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
    return torch.relu(pieces).values() + 1


@pytest.mark.parametrize(
    "function", [complex_numbers, data_dependent, reads_a_number, sparse, nested]
)
@pytest.mark.parametrize("capture", [False, True], ids=["breaks", "captured"])
@pytest.mark.filterwarnings("ignore::nimble_fx.NimbleWarning")
def test_unusual_tensors_and_data_dependence_compute_the_right_thing(
    function: Callable[[Tensor], Tensor], capture: bool
) -> None:
    x = torch.randn(4, 4)
    settings = {"capture_scalar_outputs": capture, "capture_dynamic_output_shape_ops": capture}
    with torch._dynamo.config.patch(settings):
        assert_same(torch.compile(function, backend="nimble")(x), function(x))


def test_complex_inputs_are_scheduled() -> None:
    def program(z: Tensor) -> Tensor:
        return (z.conj() * z).real + z.abs()

    z = torch.randn(3, dtype=torch.complex64)
    assert_same(torch.compile(program, backend="nimble")(z), program(z))
    assert nimble_fx.programs()


def test_an_exception_inside_leaves_nothing_behind() -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble")
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = compiled(x).clone()
        weight = model.a.weight.data
        model.a.weight.data = weight.double()
        with pytest.raises(RuntimeError):
            compiled(x)
        model.a.weight.data = weight
        assert torch.equal(compiled(x), expected)


def test_an_illegal_schedule_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_waits(self: InsertWaits, graph: nimble_fx.TaskGraph) -> nimble_fx.TaskGraph:
        return graph

    monkeypatch.setattr(InsertWaits, "__call__", no_waits)
    model, x = Branchy(), torch.randn(2, 4)
    with (
        pytest.warns(NimbleWarning, match="not legal and is not run.*report.*race"),
        torch.no_grad(),
    ):
        assert_same(torch.compile(model, backend="nimble")(x), model(x))
    (program,) = nimble_fx.programs()
    assert program.graph.n_streams == 1
    program.verify()


def test_a_module_that_lost_a_wait_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def losing_waits(graph: TaskGraph) -> str:
        return re.sub(r" +s\d\.wait_event\(e\.(?!fork).*\n", "", emit(graph))

    monkeypatch.setattr("nimble_fx.backend.emit", losing_waits)
    model, eager = twins(CASES["branchy"], train=False)
    x = torch.randn(2, 4)
    with (
        torch.no_grad(),
        pytest.warns(NimbleWarning, match=r"race on storage sigmoid: add \(stream 0, <module>:"),
    ):
        assert_same(torch.compile(model, backend="nimble")(x), eager(x))
    (program,) = nimble_fx.programs()
    assert program.graph.n_streams == 1
    assert "wait_event" not in program.source


def test_a_module_with_another_operator_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_operator(graph: TaskGraph) -> str:
        return emit(graph).replace("torch.sigmoid(", "torch.relu(")

    monkeypatch.setattr("nimble_fx.backend.emit", other_operator)
    model, eager = twins(CASES["branchy"], train=False)
    x = torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(NimbleWarning, match=r"(?s)runs as traced.*its operator:"):
        assert_same(torch.compile(model, backend="nimble")(x), eager(x))
    assert not nimble_fx.programs()


def test_verify_false_asks_for_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: nimble_fx.TaskGraph, traced: nimble_fx.TaskGraph) -> None:
        raise ScheduleError("looked at")

    monkeypatch.setattr("nimble_fx.backend.verify", refuse)
    monkeypatch.setattr("nimble_fx.backend.verify_source", refuse)
    torch.compile(Branchy(), backend="nimble", options={"verify": False})(torch.randn(2, 4))
    assert nimble_fx.programs()


def test_parameters_updated_in_place_and_loaded_are_seen() -> None:
    model, eager = twins(CASES["googlenet"], train=False)
    compiled = torch.compile(model, backend="nimble")
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        compiled(x)
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            p.add_(0.01)
            q.add_(0.01)
        assert_same(compiled(x), eager(x))
        state = CASES["googlenet"].model().state_dict()
        model.load_state_dict(state)
        eager.load_state_dict(state)
        assert_same(compiled(x), eager(x))


def test_threads_call_one_compiled_model_at_once() -> None:
    model = Inception().eval()
    compiled = torch.compile(model, backend="nimble")
    inputs = [torch.randn(1, 8, 6, 6) for _ in range(8)]
    with torch.no_grad():
        compiled(inputs[0])
    assert_threads_do_not_mix(compiled, model, inputs, n_calls=5)


def test_the_backend_is_found_by_its_entry_point_without_an_import() -> None:
    (entry,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="nimble")
    assert entry.value == "nimble_fx.backend:nimble"
    code = (
        "import torch; f = torch.compile(torch.sin, backend='nimble'); x = torch.ones(2);"
        "assert torch.equal(f(x), x.sin()); import nimble_fx; assert nimble_fx.programs()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_task_graphs_can_be_pickled_and_compared() -> None:
    torch.compile(Branchy(), backend="nimble")(torch.randn(2, 4))
    (program,) = nimble_fx.programs()
    assert copy.deepcopy(program.graph) == program.graph
    assert pickle.dumps(program.graph.inputs)
