"""Equal tasks are timed once, and timing has no side effects."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule

from nimble_fx.cost import task_times
from nimble_fx.cost.task_times import measured_times, plain_execution
from nimble_fx.cost.time_in_program import ProgramTimes
from nimble_fx.devices.cpu import Cpu
from nimble_fx.ir.task_graph import TaskGraph
from tests.support.cost_graphs import traced


def in_program(
    monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float], failed: Mapping[str, str]
) -> list[TaskGraph]:
    """The graphs that are run, which take so long."""
    ran: list[TaskGraph] = []

    def measured(graph: TaskGraph) -> ProgramTimes:
        ran.append(graph)
        return ProgramTimes(seconds, failed)

    monkeypatch.setattr(task_times, "measured_in_program", measured)
    return ran


def layers() -> TaskGraph:
    """Two layers that are alike, and what is between them."""
    return traced(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.ones(2, 4))


def test_alike_tasks_take_together_what_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = in_program(monkeypatch, {"addmm": 1.0, "tanh": 5.0, "addmm_1": 2.0}, {})
    found, failed = measured_times(layers(), Cpu(), {})
    assert sorted(timed.us for timed in found.values()) == [1.5e6, 5e6]
    assert failed == {}
    measured_times(layers(), Cpu(), found)
    assert len(ran) == 1  # all was known


def test_what_is_known_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    in_program(monkeypatch, {"addmm": 1.0, "tanh": 5.0, "addmm_1": 2.0}, {})
    found, _ = measured_times(layers(), Cpu(), {})
    known = {key: timed for key, timed in found.items() if "addmm" in key}
    more, _ = measured_times(layers(), Cpu(), known)
    assert set(more) == set(found) - set(known)


def test_a_kind_has_failed_if_none_of_it_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    in_program(monkeypatch, {"addmm_1": 2.0}, {"addmm": "no", "tanh": "never"})
    found, failed = measured_times(layers(), Cpu(), {})
    assert [timed.us for timed in found.values()] == [2e6]
    assert list(failed.values()) == ["never"]


def test_within_draws_are_undone_modes_are_off_and_nothing_is_differentiated() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    weight = nn.Parameter(torch.ones(1))
    with FakeTensorMode(), enable_python_dispatcher(), plain_execution(torch.device("cpu")):
        assert not dispatches_in_python()
        drawn: Tensor = torch.rand(1) + weight
        assert type(drawn) is Tensor
        assert not drawn.requires_grad
    assert torch.equal(torch.rand(1), expected)


def dispatches_in_python() -> bool:
    """Whether operators first ask functions in Python, as while AOTAutograd compiles."""
    key = torch._C.DispatchKey.PythonDispatcher
    return torch._C._dispatch_tls_is_dispatch_key_included(key)


def test_a_backend_is_asked_with_the_dispatcher_in_python_on() -> None:
    """Why it has to be turned off."""
    seen: list[bool] = []

    def compiler(gm: GraphModule, _: object) -> GraphModule:
        seen.append(dispatches_in_python())
        return gm

    torch.compiler.reset()
    torch.compile(torch.sin, backend=aot_autograd(fw_compiler=compiler))(torch.ones(2))
    assert seen == [True]
