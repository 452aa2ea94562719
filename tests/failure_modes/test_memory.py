"""Rows 1 to 8: memory that several streams use. See tests/failure_modes/test_index.py."""

import gc
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.cuda import Cuda
from nimble_fx.errors import NimbleWarning, ScheduleError
from nimble_fx.verify import verify
from tests.support.bits import assert_same_bits
from tests.support.eager import twins
from tests.support.models import CASES, Branchy, Inception
from tests.support.playing import first_wrong_order, on_cpu
from tests.support.replaying import ReplayingDevice
from tests.support.schedules import scheduled, traced
from tests.support.source_lines import on_virtual, the_fallback


def test_01_a_block_freed_on_one_stream_while_another_still_reads_it() -> None:
    def program(x: Tensor) -> Tensor:
        y = x + 1
        return torch.relu(y * 2) + torch.sigmoid(y * 4)

    x = torch.randn(4, 4)
    result = traced(program, x)
    graph = scheduled(result.graph)
    expected = on_cpu(graph, result.constants, [x])
    assert first_wrong_order(graph, result.constants, [x], expected) is None
    reader = graph.by_name["mul_1"]
    assert reader.stream != graph.by_name["add"].stream
    early = replace(graph, tasks=tuple(_frees_add_at(reader.name, t) for t in graph.tasks))
    with pytest.raises(ScheduleError, match="add is freed after mul_1"):
        verify(early)
    assert first_wrong_order(early, result.constants, [x], expected, n_orders=90)


def _frees_add_at(name: str, task: nimble_fx.Task) -> nimble_fx.Task:
    frees = tuple(n for n in task.frees if n != "add")
    return task.updated(frees=(*frees, "add") if task.name == name else frees)


@pytest.mark.gpu
def test_02_record_stream_in_a_capture_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *args: called.append(args))
    _, program = captured(Inception().eval(), torch.randn(1, 8, 6, 6))
    assert program.graph.n_streams > 1
    assert called == []
    assert "record_stream" not in program.source


def captured(model: nn.Module, x: Tensor) -> tuple[object, nimble_fx.Program]:
    """A compiled model on a GPU and its program, on the streams of Nimble's algorithm."""
    compiled = torch.compile(model.cuda(), backend="nimble", options={"policy": "nimble"})
    with torch.no_grad():
        compiled(x.cuda())
    (program,) = nimble_fx.programs()
    assert program.status.n_captures == 1
    return compiled, program


@pytest.mark.gpu
def test_03_many_streams_strand_memory_so_all_programs_share_a_few() -> None:
    cuda = Cuda.get(torch.device("cuda", 0))
    assert Cuda.get(torch.device("cuda", 0)) is cuda
    assert cuda.streams(5)[1:4] == cuda.streams(4)[1:]


@pytest.mark.gpu
def test_03_memory_is_reported_for_each_stream() -> None:
    _alive, program = captured(Branchy(), torch.randn(2, 4))
    assert len(program.status.nbytes) == program.graph.n_streams == 2
    assert all(program.status.nbytes)
    assert re.search(r"^  memory .*\n?.*workspaces of libraries", program.summary(), re.MULTILINE)


@pytest.mark.gpu
def test_04_libraries_get_their_workspaces_on_the_streams_that_are_captured() -> None:
    seen, cuda = list[tuple[Any, ...]](), Cuda.get(torch.device("cuda", 0))
    cuda.warm_up(3, seen.append, cuda.pool())
    cuda.capture(3, lambda streams: seen.append(streams) or (), cuda.pool())  # type: ignore[func-returns-value]
    assert seen[0] == seen[1]


@pytest.mark.gpu
def test_05_a_graph_still_replays_once_another_is_dropped() -> None:
    x, models = torch.randn(8, 4, device="cuda"), [Branchy().cuda() for _ in range(2)]
    compiled = [torch.compile(model, backend="nimble") for model in models]
    with torch.no_grad():
        assert all(run(x).shape == (8, 4) for run in compiled)
        del compiled[0]
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.testing.assert_close(compiled[0](x), models[1](x))


def test_06_out_of_memory_during_capture_and_the_next_call_works(
    device: ReplayingDevice,
) -> None:
    device.fail = True
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        with pytest.warns(NimbleWarning, match="capture failed"):
            first = compiled(x)
        assert_same_bits((first, compiled(x)), (model(x), model(x)))
    assert the_fallback("capture failed").runs == "unfrozen"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["branchy", "googlenet", "cache"])
def test_06_warm_ups_fill_the_pool_of_the_capture(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = list[int](), list[int]()
    capture = Cuda.capture

    def watched(cuda: Cuda, n: int, run: Any, pool: Any, **options: Any) -> Any:
        before.append(sum(each["total_size"] for each in pool.snapshot()))
        made = capture(cuda, n, run, pool, **options)
        after.append(sum(each["total_size"] for each in pool.snapshot()))
        return made

    monkeypatch.setattr(Cuda, "capture", watched)
    case = CASES[name]
    compiled = torch.compile(
        case.model().eval().cuda(), backend="nimble", options={"policy": "nimble"}
    )
    with torch.no_grad():
        compiled(*[x.cuda() for x in case.inputs()])
    assert len(before) == 1
    assert before == after != [0]


def test_07_forwards_and_backwards_replayed_in_another_order_than_captured() -> None:
    pairs = [twins(CASES["branchy"], train=True) for _ in range(3)]
    runs = [(on_virtual(model), eager) for model, eager in pairs]
    (x,) = CASES["branchy"].inputs()
    for together in ([0], [1], [2], [2, 0, 1]):  # captured one by one
        for kind in (0, 1):
            losses = [runs[i][kind](x).sum() for i in together]
            for loss in losses:
                loss.backward()
    for model, eager in pairs:
        found, expected = ([p.grad for p in net.parameters()] for net in (model, eager))
        torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_08_another_allocator_runs_unfrozen_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    model, x = Branchy().cuda(), torch.randn(2, 4, device="cuda")
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        with pytest.warns(NimbleWarning, match="runs unfrozen: .*cudaMallocAsync"):
            first = compiled(x)
        torch.testing.assert_close((first, compiled(x)), (model(x), model(x)))
    assert the_fallback("cudaMallocAsync").runs == "unfrozen"
