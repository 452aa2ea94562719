"""Rows 1 to 8: memory that several streams use. See tests/failure_modes/test_index.py."""

import gc
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.devices.cuda import Cuda
from nimble_fx.devices.virtual.device import Virtual, VirtualStream
from nimble_fx.devices.virtual.memory import Pool
from nimble_fx.devices.virtual.state import VirtualCapture
from nimble_fx.errors import NimbleWarning, ScheduleError
from nimble_fx.verify import verify
from tests.support import cuda_stand_in
from tests.support.bits import assert_same_bits
from tests.support.cuda_stand_in import Gpu
from tests.support.eager import assert_inference_is_eagers
from tests.support.models import CASES, Branchy, Inception
from tests.support.playing import first_wrong_order, on_cpu
from tests.support.replaying import ReplayingDevice
from tests.support.schedules import scheduled, traced
from tests.support.source_lines import the_fallback


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


def test_02_record_stream_in_a_capture_is_never_called(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *args: called.append(args))
    with torch.no_grad():
        torch.compile(Inception().eval(), backend="nimble")(torch.randn(1, 8, 6, 6))
    (program,) = nimble_fx.programs()
    assert program.status.n_captures
    assert called == []
    assert "record_stream" not in program.source


def test_03_many_streams_strand_memory_so_all_programs_share_a_few(gpu: Gpu) -> None:
    assert gpu.cuda.streams(5)[1:4] == gpu.cuda.streams(4)[1:]
    assert Cuda.get(torch.device("cuda", 0)) is Cuda.get(torch.device("cuda", 0))


def test_03_memory_is_reported_for_each_stream(gpu: Gpu) -> None:
    model = Branchy()
    with torch.no_grad():
        torch.compile(model, backend="nimble")(torch.randn(2, 4))
    (program,) = nimble_fx.programs()
    assert len(program.status.nbytes) == program.graph.n_streams == 2
    assert all(program.status.nbytes)
    assert re.search(r"^  memory ", program.summary(), re.MULTILINE)


def test_04_libraries_get_their_workspaces_on_the_streams_that_are_captured(gpu: Gpu) -> None:
    seen = list[tuple[Any, ...]]()
    gpu.cuda.warm_up(3, seen.append, gpu.cuda.pool())
    gpu.cuda.capture(3, lambda streams: seen.append(streams) or (), gpu.cuda.pool())  # type: ignore[func-returns-value]
    assert seen[0] == seen[1]


def test_04_the_workspace_of_each_stream_is_counted(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_workspaces = _nbytes_of_two_products()
    monkeypatch.setattr(cuda_stand_in, "WORKSPACE_NBYTES", 8)
    without = _nbytes_of_two_products()
    assert len(without) == 2
    assert all(a > b for a, b in zip(with_workspaces, without, strict=True))


def _nbytes_of_two_products() -> tuple[int, ...]:
    torch.compiler.reset()
    model = Branchy()
    with torch.no_grad():
        torch.compile(model, backend="nimble", options={"policy": "nimble"})(torch.randn(1, 4))
    (program,) = nimble_fx.programs()
    assert "workspaces of libraries included" in program.summary()
    return program.status.nbytes


def test_05_dropping_one_graph_frees_the_workspace_of_another_on_the_same_stream(
    gpu: Gpu,
) -> None:
    def product(x: Tensor) -> Tensor:
        return x @ x.t()

    model, options = Branchy(), dict[str, Any](max_graphs=1)
    one = torch.compile(model, backend="nimble", dynamic=True, options=options)
    other = torch.compile(product, backend="nimble")
    x, y = torch.randn(2, 4), torch.randn(3, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is called with more", NimbleWarning)
        one(x)
        other(x)
        one(y)  # its first graph goes
        gc.collect()
        assert_same_bits(other(x), product(x))
        assert_same_bits(one(y), model(y))


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


@pytest.mark.parametrize("name", ["branchy", "googlenet", "cache"])
def test_06_warm_ups_fill_the_pool_of_the_capture(
    name: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = list[Any](), list[Any]()
    begin, end = gpu.begin_capture, gpu.end_capture

    def watched_begin(stream: VirtualStream, pool: Pool) -> None:
        before.append(pool.segments)
        begin(stream, pool)

    def watched_end() -> VirtualCapture:
        recorded = end()
        after.append(recorded.pool.segments)
        return recorded

    monkeypatch.setattr(gpu, "begin_capture", watched_begin)
    monkeypatch.setattr(gpu, "end_capture", watched_end)
    assert_inference_is_eagers(CASES[name], {"policy": "nimble"})
    assert len(before) == 1
    assert before == after != [()]


def test_07_graphs_replayed_in_another_order_than_captured_share_no_memory() -> None:
    one, x = Virtual(), torch.randn(5)

    def run(function: Callable[[Tensor], Tensor]) -> Any:
        def inside(streams: tuple[Any, ...]) -> list[Tensor]:
            with streams[0]:
                return [function(function(x))]

        return one.capture(1, inside, one.pool())

    captures = [(f, run(f)) for f in (torch.exp, torch.sin, torch.tanh)]
    for _, capture in captures[::-1]:
        capture.replay()
    assert_same_bits([c.outputs[0] for _, c in captures], [f(f(x)) for f, _ in captures])


def test_08_another_allocator_runs_unfrozen_with_a_reason(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    model, x = Branchy(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        with pytest.warns(NimbleWarning, match="runs unfrozen: .*cudaMallocAsync"):
            first = compiled(x)
        assert_same_bits((first, compiled(x)), (model(x), model(x)))
    assert the_fallback("cudaMallocAsync").runs == "unfrozen"
