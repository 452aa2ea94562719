"""Costs read from a trace: each task's are those of its own call, and of no other."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import nimble_fx
from nimble_fx.cost.profile import Profile
from nimble_fx.cost.roofline import Roofline
from nimble_fx.errors import FileError
from nimble_fx.hardware import find_device
from tests.models import Branchy

A100 = find_device("a100")
OPERATORS = [f"aten::{n}" for n in ("t", "mm", "relu_", "t", "mm", "sigmoid_", "add_")]
TASKS = ["mm", "relu", "mm_1", "sigmoid", "add"]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return Branchy()


@pytest.fixture(scope="module")
def program(model: torch.nn.Module) -> nimble_fx.Program:
    with torch.no_grad():
        torch.compile(model, backend="nimble")(torch.randn(2, 4))
    return nimble_fx.programs()[-1]


def event(category: str, name: str, ts: float, us: float, **args: Any) -> dict[str, Any]:
    where = {"pid": 1, "tid": 1} if category in ("cpu_op", "cuda_runtime") else {"pid": 0, "tid": 7}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": us, "args": args, **where}


def run(times: list[list[float]], operators: list[str] = OPERATORS) -> list[dict[str, Any]]:
    """Calls 100 us apart, each of which launches kernels that take so long, and end much later.

    Behind the second another kernel is launched, which is no task's.
    """
    events = [event("cuda_runtime", "cudaLaunchKernel", 195, 1, correlation=900)]
    events.append(event("kernel", "other", 4000, 1000, correlation=900, stream=7))
    for i, (name, kernels) in enumerate(zip(operators, times, strict=True)):
        events.append(event("cpu_op", name, 100 * i, 90))
        events.append(event("cpu_op", "aten::empty", 100 * i + 10, 5))
        for j, us in enumerate(kernels):
            number = 10 * i + j
            events.append(event("cuda_runtime", "cudaLaunchKernel", 100 * i + 20 + j, 1,
                                correlation=number))  # fmt: skip
            events.append(event("kernel", f"k{number}", 5000 + 100 * number, us,
                                correlation=number, stream=7))  # fmt: skip
    return events


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_task_takes_what_the_kernels_took_that_its_call_launched(
    program: nimble_fx.Program, tmp_path: Path
) -> None:
    path = written(tmp_path, run([[], [5], [1], [], [6, 7], [], [3]]))
    costs = Profile(path, A100)(program.graph)
    assert [task.name for task in program.graph.launching] == TASKS
    assert [costs[name].us for name in TASKS] == [5, 1, 13, 0, 3]
    assert {cost.origin for cost in costs.values()} == {"profile"}
    for name, cost in Roofline(A100)(program.graph).items():
        assert (costs[name].flops, costs[name].nbytes) == (cost.flops, cost.nbytes)
        assert costs[name].bandwidth * costs[name].us == pytest.approx(
            cost.bandwidth * cost.us if costs[name].us else 0
        )


def test_on_the_host_a_task_takes_what_its_operator_took(
    program: nimble_fx.Program, model: torch.nn.Module, tmp_path: Path
) -> None:
    """Recorded here and now, three runs."""
    call, x = program.bind(model), torch.randn(2, 4)
    call(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(3):
            call(x)
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    listed = json.loads(path.read_text())["traceEvents"]
    sums = [e["dur"] for e in sorted((e for e in listed if e.get("name") == "aten::add_"),
                                     key=lambda e: float(e["ts"]))]  # fmt: skip
    costs = Profile(path, find_device("cpu"))(program.graph)
    assert set(costs) == set(TASKS)
    assert len(sums) == 3
    assert costs["add"].us == pytest.approx(median(sums), abs=1e-2)


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (OPERATORS[:-1], r"its call 6 is nothing, where the program has aten::add_ \(add\)"),
        ([*OPERATORS, "aten::mul"], r"its call 7 is aten::mul, where .* has aten::t \(t\)"),
        (["aten::t", "aten::addmm", *OPERATORS[2:]], r"call 1 is aten::addmm, .* aten::mm \(mm\)"),
        ([], "its call 0 is nothing"),
    ],
)
def test_a_trace_of_something_else_is_refused_from_where_it_differs(
    program: nimble_fx.Program, tmp_path: Path, operators: list[str], message: str
) -> None:
    path = written(tmp_path, run([[1.0]] * len(operators), operators))
    with pytest.raises(FileError, match=message):
        Profile(path, A100)(program.graph)
