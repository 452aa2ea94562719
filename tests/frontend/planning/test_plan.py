"""`nimble_fx.plan` returns the program for a GPU that is not here, and runs and changes nothing."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import nimble_fx
from nimble_fx.devices.cuda import MAX_STREAMS
from nimble_fx.errors import OptionError
from nimble_fx.ir.types import TensorType, TupleType
from tests.support.kinds import exported, graph_module, jit_traced, scripted
from tests.support.models import CASES, Branchy, GoogLeNet, Inception, Tables
from tests.support.snapshot import snapshot

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _trace_rnns() -> Iterator[None]:
    """By default Dynamo leaves torch.nn.LSTM to eager."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def devices(value: Any) -> set[torch.device]:
    """The devices in types and arguments."""
    if isinstance(value, torch.device):
        return {value}
    if isinstance(value, TensorType):
        return {value.device}
    items = value.items if isinstance(value, TupleType) else value
    return {d for item in items for d in devices(item)} if isinstance(items, tuple) else set()


def assert_planned(program: nimble_fx.Program, device: torch.device = GPU) -> None:
    """It says what it is for, is legal, and names no other device."""
    assert program.device == str(device)
    assert not program.status.frozen
    assert re.fullmatch(
        rf"it is planned for {device} \(.+\), which need not be here", program.status.reason or ""
    )
    assert f"runs on  {device}" in program.summary()
    program.verify()
    nimble_fx.verify_source(program.source)
    graph = program.graph
    used = {d for value in graph.values for d in devices(value.type)}
    used |= {d for task in graph.tasks for d in devices((task.args, task.kwargs))}
    assert used == {device}
    assert "meta" not in program.source.split("def call")[1]
    assert program not in nimble_fx.programs()


@pytest.mark.parametrize("name", CASES)
def test_each_model_is_planned_for_inference_and_is_left_as_it_was(name: str) -> None:
    case = CASES[name]
    model, inputs = case.model().eval(), case.inputs()
    before = snapshot(model, inputs)
    program = nimble_fx.plan(model, inputs, policy="nimble")
    assert snapshot(model, inputs) == before
    assert_planned(program)
    assert program.graph.n_streams == program.graph.width


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.trainable])
def test_each_model_is_planned_for_training_and_is_left_as_it_was(name: str) -> None:
    case = CASES[name]
    model, inputs = case.model().train(), case.inputs()
    before = snapshot(model, inputs)
    programs = nimble_fx.plan(model, inputs, training=True)
    assert snapshot(model, inputs) == before
    assert [program.name.split()[-1] for program in programs] == ["(training)", "(backward)"]
    for program in programs:
        assert_planned(program)


@pytest.mark.parametrize("name", ["branchy", "googlenet", "recurrent", "views", "tables"])
def test_the_plan_is_the_schedule_that_is_compiled_where_the_operators_are_the_same(
    name: str,
) -> None:
    case = CASES[name]
    model, inputs = case.model().eval(), case.inputs()
    planned = nimble_fx.plan(model, inputs, policy="nimble")
    options: dict[str, Any] = {"policy": "nimble", "fold_weights": False}
    (compiled,) = nimble_fx.compile(model, inputs, **options).programs
    assert planned.name == compiled.name
    assert [v.name for v in planned.graph.inputs] == [v.name for v in compiled.graph.inputs]
    assert [(t.name, t.target, t.stream, t.waits, t.frees) for t in planned.graph.tasks] == [
        (t.name, t.target, t.stream, t.waits, t.frees) for t in compiled.graph.tasks
    ]


def test_what_a_function_writes_to_outside_of_its_arguments_is_left_as_it_was() -> None:
    counter, calls = torch.zeros(3), [0]

    def program(x: Tensor) -> Tensor:
        counter.add_(1)
        calls[0] += 1
        return x * 2

    nimble_fx.plan(program, torch.ones(3))
    assert (counter.tolist(), calls) == ([0, 0, 0], [0])


def test_so_is_it_if_there_is_no_plan() -> None:
    counter, calls = torch.zeros(3), [0]

    def program(x: Tensor) -> Tensor:
        counter.add_(1)
        calls[0] += 1
        return x @ torch.ones(7, 7)

    with pytest.raises(OptionError, match="raises RuntimeError"):
        nimble_fx.plan(program, torch.ones(3, 3))
    assert (counter.tolist(), calls) == ([0, 0, 0], [0])


def test_no_kernel_of_the_model_runs() -> None:
    ran: list[str] = []
    with torch.library._scoped_library("nimble_plan", "FRAGMENT") as library:
        library.define("work(Tensor x) -> Tensor")
        library.define("work_backward(Tensor x) -> Tensor")

        def kernel(name: str, x: Tensor) -> Tensor:
            ran.append(name)
            return x.clone()

        for name in ("work", "work_backward"):
            library.impl(name, partial(kernel, name), "CPU")
            library.impl(name, torch.empty_like, "Meta")
        work = torch.ops.nimble_plan.work.default

        class Works(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return work(x)

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return torch.ops.nimble_plan.work_backward.default(gradient)

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(3))

            def forward(self, x: Tensor) -> Tensor:
                return Works.apply(x * self.weight) + 1

        model, x = Model(), torch.randn(3)
        program = nimble_fx.plan(model, x)
        forward, backward = nimble_fx.plan(model, x, training=True)
        targets = [{t.target for t in p.graph.tasks} for p in (program, forward, backward)]
        assert [work in found for found in targets] == [True, True, False]
        assert torch.ops.nimble_plan.work_backward.default in targets[2]
        assert ran == []
        model(x)
        assert ran == ["work"]


def huge() -> nn.Module:
    """64 GB a layer."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(2**17, 2**17), nn.ReLU(), nn.Linear(2**17, 2**17))


def test_a_model_larger_than_memory_is_planned_on_meta() -> None:
    x = torch.empty(64, 2**17, device="meta")
    assert_planned(nimble_fx.plan(huge(), x))
    for program in nimble_fx.plan(huge(), x, training=True):
        assert_planned(program)


def test_inputs_may_be_on_another_device_than_the_model() -> None:
    with torch.device("meta"):
        model = GoogLeNet()
    assert_planned(nimble_fx.plan(model, torch.randn(1, 3, 16, 16)))


def test_inputs_and_models_may_be_fake() -> None:
    with FakeTensorMode():
        model, x = Branchy(), torch.randn(2, 4)
    assert_planned(nimble_fx.plan(model, x))
    assert_planned(nimble_fx.plan(Branchy(), x))
    for program in nimble_fx.plan(model, x, training=True):
        assert_planned(program)


@pytest.mark.parametrize("kind", [exported, graph_module, scripted, jit_traced])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_models_of_other_kinds_are_planned(kind: Callable[[nn.Module, Tensor], Any]) -> None:
    x = torch.randn(2, 4)
    made = kind(Branchy(), x)
    assert_planned(nimble_fx.plan(made, x))
    for program in nimble_fx.plan(made, x, training=True):
        assert_planned(program)
    assert_planned(nimble_fx.plan(made, x))


def test_devices_that_an_exported_model_names_become_the_target() -> None:
    class Positions(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin() + torch.arange(7.0, device=x.device) * torch.rand(7, device=x.device)

    x = torch.ones(2, 7)
    model = torch.export.export(Positions(), (x,))
    before = str(model)
    program = nimble_fx.plan(model, x)
    assert_planned(program)
    (draw,) = [task for task in program.graph.tasks if task.name.startswith("rand")]
    assert dict(draw.kwargs)["device"] == GPU
    (arange,) = program.constants.values()
    assert arange.tolist() == [*range(7)]
    assert str(model) == before


class Pairs(nn.Module):
    """Indices and numbers that `forward` makes on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        i, j = torch.tril_indices(4, 4, -1)
        return (x @ self.weight)[:, i, j] * torch.tensor(2.0)


def test_indices_that_the_model_makes_on_the_cpu_become_constants_of_the_device(
    tmp_path: Path,
) -> None:
    x = torch.ones(2, 4, 4)
    for program in (
        nimble_fx.plan(Pairs(), x, device="h100"),
        *nimble_fx.plan(Pairs(), x, device="h100", training=True),
    ):
        assert_planned(program)
        values = [value.tolist() for value in program.constants.values()]
        assert sorted(map(str, values)) == ["2.0", "[0, 0, 1, 0, 1, 2]", "[1, 2, 2, 3, 3, 3]"]
        assert program.save(tmp_path / "planned.json").stat().st_size < 10_000


@pytest.mark.parametrize(
    ("device", "planned"),
    [
        ("cuda", "cuda:0"),
        ("cuda:3", "cuda:3"),
        (torch.device("cuda"), "cuda:0"),
        (torch.device("cuda", 1), "cuda:1"),
    ],
)
def test_the_device_is_a_name_or_a_torch_device(device: Any, planned: str) -> None:
    assert_planned(
        nimble_fx.plan(Branchy(), torch.ones(2, 4), device=device), torch.device(planned)
    )


@pytest.mark.parametrize("device", ["cpu", "meta", None, 3, torch.device("cpu")])
def test_other_devices_are_refused_before_any_work(device: Any) -> None:
    with pytest.raises(OptionError, match="it takes 'cuda', 'cuda:N'"):
        nimble_fx.plan(None, None, device=device)


def test_a_cpu_is_not_among_what_can_be_planned_for() -> None:
    with pytest.raises(OptionError, match="known devices: v100") as raised:
        nimble_fx.plan(None, None, device="tpu")
    assert "cpu" not in str(raised.value)


@pytest.mark.parametrize("device", ["h1000", "cuda:x", "virtual"])
def test_unknown_names_are_refused_with_those_that_are_known(device: str) -> None:
    with pytest.raises(OptionError, match=f"device='{device}' is not known.*h100, h200"):
        nimble_fx.plan(None, None, device=device)


def test_a_narrow_device_is_planned_on_fewer_streams_than_a_wide_one() -> None:
    x, narrow = torch.randn(1, 8, 64, 64), nimble_fx.Device(sms=1, tflops=0.1, gbps=10)
    wide = nimble_fx.plan(Inception().eval(), x, device="h100")
    assert (
        wide.graph.n_streams > nimble_fx.plan(Inception().eval(), x, device=narrow).graph.n_streams
    )


def test_options_are_those_of_a_compile() -> None:
    x = torch.ones(2, 4)
    assert nimble_fx.plan(Branchy(), x, policy="serial").graph.n_streams == 1
    with pytest.raises(OptionError, match="unknown option 'polcy'"):
        nimble_fx.plan(Branchy(), x, polcy="serial")
    with pytest.raises(OptionError, match="did you mean 'training'"):
        nimble_fx.plan(Branchy(), x, trainng=True)


@pytest.mark.parametrize("policy", ["auto", "critical-path"])
def test_no_stream_is_urgent_where_priorities_are_not_wanted(policy: str) -> None:
    model, x = Inception().eval(), torch.ones(1, 8, 6, 6)
    urgent = nimble_fx.plan(model, x, device="h100", policy="critical-path").graph.urgent
    assert urgent is not None
    program = nimble_fx.plan(model, x, device="h100", policy=policy, priorities=False)
    assert program.graph.urgent is None
    assert "URGENT" not in program.source


def test_a_plan_says_what_it_is_for_and_keeps_no_file_of_what_is_not_here(tmp_path: Path) -> None:
    for name in ("l4", "L4"):
        program = nimble_fx.plan(Branchy(), torch.ones(2, 4), device=name, cache_dir=tmp_path)
        assert "planned for cuda:0 (l4)" in program.summary()
    if not torch.cuda.is_available():
        assert list(tmp_path.iterdir()) == []


def test_an_input_may_be_a_view_of_one_that_is_written() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y[0:1]

    x = torch.ones(4, 4)
    assert nimble_fx.plan(function, (x, x[::2]), device="h100").graph.launching
    assert torch.equal(x, torch.ones(4, 4))


def test_random_numbers_are_as_they_were() -> None:
    x, before = torch.ones(4), torch.get_rng_state()
    nimble_fx.plan(lambda x: (torch.randn(2), x * 2), x, device="h100")
    assert torch.equal(before, torch.get_rng_state())


def test_dump_writes_the_planned_module(tmp_path: Path) -> None:
    program = nimble_fx.plan(Branchy(), torch.ones(2, 4), dump=tmp_path)
    assert program.path is not None
    assert program.path.read_text() == program.source


def test_streams_are_limited_as_on_the_device() -> None:
    n = MAX_STREAMS + 8
    ids = torch.zeros(2, n, dtype=torch.int64)
    assert nimble_fx.plan(Tables(n), ids, policy="nimble").graph.n_streams == MAX_STREAMS
    assert nimble_fx.plan(Tables(n), ids, policy="nimble", max_streams=5).graph.n_streams == 5
