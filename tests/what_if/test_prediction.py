"""Predictions for programs and for recorded runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

import nimble_fx
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import Device, find_device
from nimble_fx.errors import FileError, OptionError, UnsupportedError
from nimble_fx.ir.symbolic_sizes import symbols_of
from nimble_fx.ir.types import ScalarType
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.simulation.schedule_model import predict
from nimble_fx.traces import read
from nimble_fx.verify import verify
from nimble_fx.what_if.prediction import WhatIf, whatif
from nimble_fx.what_if.sources import PlannedSource
from tests.strategies.traces import Call, Played, written
from tests.support.models import Branchy
from tests.support.saved import with_changes

NIMBLE: dict[str, Any] = {"policy": "nimble"}
"""On a CPU "auto" is the serial schedule, of which there is less to be asked."""


@pytest.fixture(scope="module")
def program() -> nimble_fx.Program:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble", options=NIMBLE)(torch.randn(2, 4))
    return nimble_fx.programs()[-1]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two kernels on one stream and one on another, and a wait for all."""
    calls = [
        Call("launch", 3, 7, 20, 0),
        Call("launch", 3, 7, 20, 0),
        Call("launch", 3, 20, 10, 0),
        Call("device", 3, 7, 0, 0),
    ]
    path = tmp_path / "trace.json"
    path.write_text(written(Played(calls)))
    return path


def among(names: list[str]) -> Callable[[Activity], bool]:
    return lambda activity: activity.name in names


def makespan(edited: WhatIf) -> float:
    return edited.predict().makespan_us


def test_without_an_edit_a_program_takes_what_is_predicted(program: nimble_fx.Program) -> None:
    device = find_device("h100")
    for frozen in (True, False):
        edited = whatif(program, device="h100", frozen=frozen)
        costs = Roofline(device)(program.graph)
        expected = predict(program.graph, costs, device, frozen=frozen)
        assert edited.predict().timeline == expected
        assert edited.predict().speed_up == 1
        assert edited.baseline_us == expected.makespan_us


def test_without_an_edit_a_trace_takes_what_was_recorded(trace: Path) -> None:
    for of in (trace, str(trace), read(trace)):
        assert makespan(whatif(of)) == read(trace).span_us


def test_it_prints_in_a_line(trace: Path) -> None:
    half = whatif(trace).scale("kernel", 0.5)
    assert repr(half) == "<WhatIf: 8 activities, 44.0 us without edits; 1 edit>"
    assert str(half.predict()).startswith("24.0 us, 1.83 times as fast as without edits (44.0 us)")
    assert str(whatif(trace).predict()).startswith("44.0 us; no schedule")


def test_an_edit_gives_another_and_leaves_the_one_as_it_is(trace: Path) -> None:
    one = whatif(trace)
    before = one.activities
    edits = [
        one.scale("kernel", 2), one.remove("kernel #2"), one.fuse("kernel #[12]"),
        one.move("kernel #2", "gpu0 s20"), one.without_launches(), one.mixed_precision(),
        one.insert(Activity("new", "gpu0 s7", 9, (), "gpu0"), before="kernel #1"),
    ]  # fmt: skip
    for edited in edits:
        assert edited.activities != before
        assert edited.baseline_us == one.baseline_us
    assert one.activities == before


def test_edits_that_change_nothing_change_nothing(trace: Path, program: nimble_fx.Program) -> None:
    for one in (whatif(trace), whatif(program, "h100"), whatif(program, "h100", frozen=False)):
        on_device = next(a for a in one.activities if a.engine is not None)
        assert one.scale(lambda _: True, 1).activities == one.activities
        assert one.move(on_device.name, on_device.queue).activities == one.activities
        assert makespan(one.fuse(on_device.name)) == pytest.approx(one.baseline_us)


def test_kernels_twice_as_fast_in_a_trace(trace: Path) -> None:
    """Calls of 2 us at 0, 5, 10; kernels of 20 and 20 from 2 us on, the wait's end 2 us behind."""
    assert whatif(trace).baseline_us == 44
    half = whatif(trace).scale("kernel", 0.5).predict()
    assert (half.makespan_us, half.speed_up) == (24, 44 / 24)
    assert makespan(whatif(trace).without_launches()) == 40
    assert makespan(whatif(trace).remove("kernel #1").remove("kernel #2")) < 44


def test_a_prediction_of_no_time_is_infinitely_fast(trace: Path) -> None:
    assert whatif(trace).without_launches().scale("kernel", 0).predict().speed_up == float("inf")


def test_mixed_precision_is_a_third_of_products_and_half_of_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run = Played([Call("launch", 0, 7, 60, 0) for _ in range(4)])
    kernels = [event for event in run.events if event["cat"] == "kernel"]
    shown = ["sm80_xmma_gemm", "elementwise", "Memcpy DtoD", "cudnn::nchwToNhwcKernel_conv"]
    for event, name in zip(kernels, shown, strict=True):
        event["name"] = name
    path.write_text(json.dumps({"traceEvents": run.events}))
    times = [a.us for a in whatif(path).mixed_precision().activities if a.engine is not None]
    assert times == [20, 30, 60, 30]


def test_mixed_precision_of_a_program_is_by_operations_for_each_byte() -> None:
    assert gains_by_mixed_precision(torch.empty(4096, 4096)) == pytest.approx([3, 2])


def test_mixed_precision_takes_no_kernel_below_the_devices_least() -> None:
    assert gains_by_mixed_precision(torch.empty(2, 2)) == pytest.approx([1, 1], abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_mixed_precision_leaves_what_is_no_wider_as_it_is(dtype: torch.dtype) -> None:
    assert gains_by_mixed_precision(torch.empty(4096, 4096, dtype=dtype)) == [1, 1]


def gains_by_mixed_precision(x: Tensor) -> list[float]:
    """How many times as fast each kernel of `_Wide` gets."""
    one = whatif(nimble_fx.plan(_Wide(), x, device="h100", policy="serial"))
    pairs = zip(one.activities, one.mixed_precision().activities, strict=True)
    return [before.us / after.us for before, after in pairs if before.name in ("mm", "relu")]


class _Wide(torch.nn.Module):
    """A product of 512 x 512 matrices and what is bound by memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two kernels."""
        return torch.relu(x @ x)


def test_other_streams_are_a_legal_schedule_of_so_many(program: nimble_fx.Program) -> None:
    for n_streams in (1, 2, 3):
        source = whatif(program, "h100").streams(n_streams).source
        assert isinstance(source, PlannedSource)
        verify(source.graph)
        assert source.graph.n_streams == min(n_streams, program.graph.width)


def test_other_streams_keep_updates_of_state_and_allocations_where_they_are() -> None:
    def program(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        noise = torch.empty_like(x).uniform_()
        return x.exp() + noise.sin()

    x = torch.randn(4, 4)
    planned = nimble_fx.plan(program, (x, torch.ones(())), device="h100", policy="nimble")
    source = whatif(planned).streams(32).source
    assert isinstance(source, PlannedSource)
    assert [task.name for task in source.graph.tasks] == [t.name for t in planned.graph.tasks]


def test_one_stream_is_slower_and_other_edits_stay(program: nimble_fx.Program) -> None:
    wide = whatif(program, "h100")
    assert makespan(wide.streams(1)) > wide.baseline_us
    edited = wide.scale("relu", 3).streams(1)
    assert edited.activities == wide.streams(1).scale("relu", 3).activities
    assert (
        wide.on("v100").scale("relu", 3).activities == wide.scale("relu", 3).on("v100").activities
    )


def test_moved_to_another_stream_a_task_waits_for_an_event(program: nimble_fx.Program) -> None:
    device = Device(sms=100, tflops=10, gbps=1000, event_us=50)
    one = whatif(program, device).streams(1)
    assert makespan(one.move("relu", "s9")) >= makespan(one) + 50


def test_on_another_device_it_takes_what_it_takes_there(program: nimble_fx.Program) -> None:
    edited = whatif(program, "h100").on("v100")
    assert makespan(edited) == whatif(program, "v100").baseline_us
    assert edited.baseline_us == whatif(program, "h100").baseline_us
    mine = Device(sms=1, tflops=1, gbps=1)
    assert makespan(whatif(program, "h100").on(mine)) == whatif(program, mine).baseline_us


def test_without_launches_a_program_is_as_if_frozen(program: nimble_fx.Program) -> None:
    unfrozen, frozen = (whatif(program, "h100", frozen=frozen) for frozen in (False, True))
    assert unfrozen.without_launches().activities == frozen.activities
    assert frozen.without_launches().activities == frozen.activities


def test_a_trace_is_not_put_on_another_device_or_scheduled_again(trace: Path) -> None:
    with pytest.raises(OptionError, match="does not say what its kernels do"):
        whatif(trace).on("v100")
    with pytest.raises(OptionError, match="does not say which kernels depend on which"):
        whatif(trace).streams(2)
    with pytest.raises(OptionError, match="a trace has its own"):
        whatif(trace, "h100")


def test_what_is_wrong_is_said_where_it_is_asked_for(
    trace: Path, program: nimble_fx.Program, tmp_path: Path
) -> None:
    one = whatif(program, "h100")
    for n_streams in (0, -1, 1.5, True, "2"):
        with pytest.raises(OptionError, match="whole number of at least 1"):
            one.streams(n_streams)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean 'h100'"):
        one.on("h1000")
    with pytest.raises(OptionError, match=r"takes a Program, such as .*programs\(\).*not Linear"):
        whatif(torch.nn.Linear(2, 2), "h100")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean 'relu'"):
        one.scale("rellu", 2)
    with pytest.raises(OptionError, match="there is no kernel"):
        whatif(trace).remove("kernel").mixed_precision()
    with pytest.raises(FileError, match="cannot be read"):
        whatif(tmp_path / "none.json")


def test_a_program_for_a_device_without_figures_asks_for_one(program: nimble_fx.Program) -> None:
    found = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA L4": "l4",
             "NVIDIA GeForce RTX 4090": "rtx4090"}  # fmt: skip
    for hardware, name in found.items():
        source = whatif(
            replace(with_changes(program, device="cuda", hardware=hardware), specs=None)
        ).source
        assert isinstance(source, PlannedSource)
        assert source.device == find_device(name)
    for hardware in ("NVIDIA L40S", "NVIDIA GH200 480GB", ""):
        with pytest.raises(OptionError, match=r"pass device=\.\.\., one of v100"):
            whatif(replace(with_changes(program, device="cuda", hardware=hardware), specs=None))
    assert whatif(program).baseline_us == whatif(program, "cpu").baseline_us
    planned = nimble_fx.plan(Branchy(), torch.randn(2, 4), device="v100")
    assert whatif(planned).baseline_us == whatif(planned, "v100").baseline_us


@pytest.mark.parametrize("what", ["x", None, ("new", "s0", 1.0)])
def test_what_is_inserted_is_an_activity(trace: Path, what: Any) -> None:
    with pytest.raises(OptionError, match=r"insert takes a nimble_fx\.Activity, not"):
        whatif(trace).insert(what)
    new = nimble_fx.Activity("new", "gpu0 s7", 9, (), "gpu0")
    assert len(whatif(trace).insert(new).activities) == len(whatif(trace).activities) + 1


@pytest.mark.parametrize(
    "sizes", [[("s0", 4)], {"s0": [4]}, {1: 2}, {"s0": 2.0}, {"s0": -1}, {"s0": 10**19}]
)
def test_sizes_are_numbers_by_name(program: nimble_fx.Program, sizes: Any) -> None:
    with pytest.raises(OptionError, match="it takes a dict such as"):
        whatif(program, "h100", sizes=sizes)


def test_a_size_that_nothing_launched_reads_is_not_asked_for() -> None:
    def program(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        length = n.item()
        torch._check(length >= 0)
        torch._check(length <= x.shape[0])
        return x[:length], x.relu() @ x + x.sigmoid() @ x

    options: dict[str, Any] = {
        "policy": "critical-path",
        "device": "virtual",
        "on_fallback": "silent",
    }
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        torch.compile(program, backend="nimble", options=options)(
            torch.randn(256, 256), torch.tensor(2)
        )
    made = nimble_fx.programs()[-1]
    assert made.graph.n_streams == 2
    assert whatif(made, "h100").predict().speed_up == 1


def test_no_sizes_are_asked_for_where_none_are_symbolic(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = nimble_fx.plan(_Wide(), torch.randn(6, 6), device="h100", policy="serial")

    def fails(*_: Any, **__: Any) -> float:
        raise ValueError("these shapes")

    monkeypatch.setitem(flop_registry, torch.ops.aten.mm, fails)
    with pytest.raises(UnsupportedError, match=r"these shapes'\)$"):
        whatif(planned)


def test_symbolic_sizes_are_asked_for() -> None:
    with torch.no_grad():
        torch.compile(_Wide(), backend="nimble", dynamic=True, options=NIMBLE)(torch.randn(6, 6))
    program = nimble_fx.programs()[-1]
    types = [each.type for each in program.graph.inputs]
    sizes = {each.expression: 6 for each in types if isinstance(each, ScalarType)}
    (symbol,) = sizes
    with pytest.raises(UnsupportedError, match=rf"{symbol} has no value; pass it as si"):
        whatif(program, "h100")
    with pytest.raises(OptionError, match=f"there is no 'x'; .* has the symbols {symbol}"):
        whatif(program, "h100", sizes={**sizes, "x": 8})
    assert makespan(whatif(program, "h100", sizes=sizes)) > 0


def test_sizes_below_zero_are_refused() -> None:
    with torch.no_grad():
        compiled = torch.compile(lambda x: x[5:].sin() + 1, backend="nimble", dynamic=True)
        compiled(torch.randn(8, 4))
    program = nimble_fx.programs()[-1]
    symbols = symbols_of(program.graph)
    assert makespan(whatif(program, "h100", sizes=dict.fromkeys(symbols, 6))) > 0
    with pytest.raises(OptionError, match=r"would have the shape \[-3, 2\]"):
        whatif(program, "h100", sizes=dict.fromkeys(symbols, 2))


NO: Any = "no"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda base: base.fuse("mm", us="relu"), "us is 'relu': it takes a number"),
        (lambda base: base.move("mm", 3), "queue=3 is not valid; it takes a name"),
        (lambda base: base.move("mm", "s0", 3), "engine=3 is not valid; it takes a name"),
        (lambda base: whatif("trace", frozen=NO), "frozen='no' is not valid"),
    ],
)
def test_what_no_edit_takes_is_said(edit: Callable[[WhatIf], object], message: str) -> None:
    base = whatif(nimble_fx.plan(Branchy(), torch.randn(2, 4)))
    with pytest.raises(OptionError, match=message):
        edit(base)


def test_several_may_be_selected_by_a_list() -> None:
    base = whatif(nimble_fx.plan(Branchy(), torch.randn(2, 4)))
    one_by_one = base.scale("mm", 2.0).scale("mm_1", 2.0).predict().makespan_us
    assert base.scale(["mm", "mm_1"], 2.0).predict().makespan_us == one_by_one
    with pytest.raises(OptionError, match="'nothing' selects no activity"):
        base.scale(["mm", "nothing"], 2.0)


def test_other_streams_have_no_urgent_one_of_the_old_schedule() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x.cos().exp().tan() + x.tanh().erf()

    program = nimble_fx.plan(branches, torch.randn(64), device="h100", policy="critical-path")
    urgent = program.graph.urgent
    assert urgent is not None
    last = with_changes(program, graph=replace(program.graph, urgent=program.graph.n_streams - 1))
    for n_streams in (1, 2, 3):
        source = whatif(last, "h100").streams(n_streams).source
        assert isinstance(source, PlannedSource)
        assert source.graph.urgent is None


def test_it_is_there_as_nimble_fx_whatif(trace: Path) -> None:
    assert nimble_fx.whatif is whatif
    assert nimble_fx.traces.read is read
    assert "traces" in dir(nimble_fx)
    assert makespan(nimble_fx.whatif(trace)) > 0
