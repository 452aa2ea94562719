"""Everything that runs slower than asked for is listed, counted, and reported."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import nimble_fx
from nimble_fx.errors import FallbackError, NimbleWarning
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.ir.task_graph import TaskGraph
from tests.support.models import Branchy
from tests.support.replaying import ReplayingDevice
from tests.support.source_lines import on_virtual


def sizes_depend_on_data(x: Tensor) -> Tensor:
    return x.nonzero() + 1


def compiled_with(on_fallback: str) -> Callable[..., Any]:
    return on_virtual(sizes_depend_on_data, on_fallback=on_fallback)


@pytest.fixture(autouse=True)
def _dynamic_outputs() -> Any:
    counters.clear()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def test_warn_says_once_what_runs_slower_and_why() -> None:
    compiled, x = compiled_with("warn"), torch.eye(2)
    with pytest.warns(NimbleWarning) as caught:
        results = [compiled(x) for _ in range(3)]
    assert all(torch.equal(result, sizes_depend_on_data(x)) for result in results)
    (warning,) = [w for w in caught if w.category is NimbleWarning]
    assert "sizes_depend_on_data runs unfrozen: nonzero" in str(warning.message)


def call(run: Callable[..., Any]) -> None:
    run(torch.eye(2))  # the user's line


@pytest.mark.parametrize(
    "run",
    [
        compiled_with("warn"),
        lambda x: nimble_fx.compile(sizes_depend_on_data, x, device="virtual"),
    ],
    ids=["compiled", "ahead of time"],
)
def test_a_warning_is_at_the_users_line(run: Callable[..., Any]) -> None:
    with pytest.warns(NimbleWarning) as caught:
        call(run)
    (warning,) = [w for w in caught if w.category is NimbleWarning]
    assert warning.filename == __file__
    line = Path(__file__).read_text("utf-8").splitlines()[warning.lineno - 1]
    assert "the user's line" in line or "nimble_fx.compile(" in line


def test_a_warning_from_no_line_of_the_user_is_issued_all_the_same() -> None:
    with pytest.warns(NimbleWarning, match="something"):
        exec(compile("warn('something')", "<string>", "exec"), {"warn": Reporter().warn})


def test_silent_says_nothing_and_lists_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled_with("silent")(torch.eye(2))
    (fallback,) = nimble_fx.fallbacks()
    assert (fallback.program, fallback.runs) == ("sizes_depend_on_data", "unfrozen")
    assert fallback.node == "nonzero"
    assert fallback.source is not None
    assert fallback.source.code == "return x.nonzero() + 1"
    assert counters["nimble"]["fallbacks"] == 1


def test_error_raises_what_the_user_can_catch() -> None:
    with pytest.raises(FallbackError, match=r"nonzero.*test_fallback.py") as raised:
        compiled_with("error")(torch.eye(2))
    assert raised.value.node == "nonzero"
    assert raised.value.source is not None


def test_error_is_raised_by_each_call_that_cannot_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nimble_fx.this_machine.device_for", lambda _: ReplayingDevice(fail=True))
    compiled = torch.compile(Branchy(), backend="nimble", options={"on_fallback": "error"})
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(FallbackError, match="would run unfrozen: capture failed"):
                compiled(torch.randn(2, 4))
    assert len(nimble_fx.fallbacks()) == 1


def test_a_graph_that_cannot_be_scheduled_is_listed_with_the_users_line() -> None:
    with pytest.warns(NimbleWarning, match="runs as traced"):
        on_virtual(lambda x: torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, [x]))(
            torch.ones(2)
        )
    (fallback,) = nimble_fx.fallbacks()
    assert fallback.runs == "as traced, without a schedule"
    assert fallback.node
    assert str(fallback.source).startswith(__file__)


def test_where_there_are_no_graphs_nothing_falls_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(sizes_depend_on_data, backend="nimble")(torch.eye(2))
    assert nimble_fx.fallbacks() == ()


def test_the_list_ends_with_a_reset() -> None:
    compiled_with("silent")(torch.eye(2))
    torch.compiler.reset()
    assert nimble_fx.fallbacks() == ()


def test_a_reporter_lists_each_fallback_once_and_warns_of_the_first() -> None:
    reporter, first = Reporter(), Fallback("net", "unfrozen", "one")
    with pytest.warns(NimbleWarning, match="net runs unfrozen: one"):
        reporter.report(first)
    reporter.report(first)
    reporter.report(Fallback("net", "unfrozen", "two"))
    assert [fallback.reason for fallback in nimble_fx.fallbacks()] == ["one", "two"]


def test_an_error_says_once_what_would_run_how_and_nothing_runs() -> None:
    @dataclass(frozen=True)
    class Forgetful:
        """A policy that gives no task a stream but the last."""

        name = "forgetful"

        def __call__(self, graph: TaskGraph) -> TaskGraph:
            return graph.with_streams({graph.launching[-1].name: 0})

    options: Any = {"on_fallback": "error", "policy": Forgetful()}
    for training in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(Branchy(), backend="nimble", options=options)
        with torch.set_grad_enabled(training), pytest.raises(FallbackError) as raised:
            compiled(torch.randn(2, 4))
        message = str(raised.value)
        assert message.count(" would run ") == 1
        assert "would run on one stream: the schedule of policy forgetful" in message
        assert 'on_fallback="error"' in message
        listed = [f.runs for f in nimble_fx.fallbacks() if f.program.startswith("Branchy")]
        assert listed == ["on one stream"]
