"""Fusing tasks of a program saves launches and traffic, in any order of edits."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.devices.specs import find_device
from nimble_fx.what_if.prediction import WhatIf, whatif


def makespan(edited: WhatIf) -> float:
    return edited.predict().makespan_us


def tasks_of(function: Callable[[Tensor], object]) -> WhatIf:
    """What a program of large elementwise kernels on one stream would take."""
    with torch.device("meta"):
        x = torch.empty(4096, 4096)
    return whatif(nimble_fx.plan(function, x, device="h100", policy="serial"))


def chain(x: Tensor) -> Tensor:
    return x.sin().cos().exp().tanh()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin().view(2048, 8192).cos(),
        lambda x: torch.split(x.sin(), 4096)[0].cos(),
        lambda x: x.sin().t().cos(),
    ],
    ids=["view", "item", "transposed"],
)
def test_a_view_between_kernels_is_fused_like_its_base(
    function: Callable[[Tensor], Tensor],
) -> None:
    plain = tasks_of(lambda x: x.sin().cos())
    assert makespan(tasks_of(function).fuse("*")) == pytest.approx(makespan(plain.fuse("*")))


def test_a_view_that_is_returned_is_still_written() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y.cos(), y.view(-1)

    one = tasks_of(function)
    fixed = find_device("h100").kernel_us
    assert makespan(one.fuse("*")) == pytest.approx(one.baseline_us - fixed)


def test_a_part_that_is_read_counts_as_a_part() -> None:
    """All of a result is written, and half of it read, if the other half is not used."""
    whole, half = tasks_of(lambda x: x.sin().cos()), tasks_of(lambda x: x.sin()[:2048].cos())
    saved = [one.baseline_us - makespan(one.fuse("*")) for one in (whole, half)]
    fixed = find_device("h100").kernel_us
    assert saved[1] - fixed == pytest.approx(0.75 * (saved[0] - fixed))


def test_an_expanded_value_is_read_once() -> None:
    one = tasks_of(lambda x: x[:1].sin().expand(4096, 4096).cos())
    fixed = find_device("h100").kernel_us
    assert one.baseline_us - makespan(one.fuse("*")) == pytest.approx(fixed, rel=0.01)


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_fusing_and_scaling_can_be_done_in_any_order(factor: float) -> None:
    one = tasks_of(chain)
    first, last = one.scale("*", factor).fuse("*"), one.fuse("*").scale("*", factor)
    assert makespan(first) == pytest.approx(makespan(last))
    first, last = one.mixed_precision().fuse("*"), one.fuse("*").mixed_precision()
    assert makespan(first) == pytest.approx(makespan(last))


@pytest.mark.parametrize("steps", [["sc", "se", "st"], ["et", "cet", "sc"], ["sc", "et", "se"]])
def test_fusing_in_steps_is_fusing_at_once(steps: list[str]) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The results of `sin` and `exp` are kept, so they are written."""
        a = x.sin()
        b = a.cos().exp()
        return a, b, b.tanh()

    stepwise = one = tasks_of(function)
    for step in steps:
        stepwise = stepwise.fuse([a.name for a in stepwise.activities if a.name[0] in step])
    assert makespan(stepwise) == pytest.approx(makespan(one.fuse("*")))
    (kernel,) = stepwise.activities
    assert set(kernel.parts) == {"sin", "cos", "exp", "tanh"}


def test_host_calls_that_are_fused_take_as_long_as_all_of_them() -> None:
    program = nimble_fx.plan(chain, torch.ones(8), device="h100", policy="serial")
    one = whatif(program, frozen=False)
    calls = [a for a in one.activities if a.queue == "host"]
    fused = one.fuse(lambda activity: activity.queue == "host")
    (call,) = [a for a in fused.activities if a.queue == "host"]
    assert call.us == sum(each.us for each in calls)


def test_what_takes_no_time_is_infinitely_fast_and_nothing_as_fast_as_itself() -> None:
    assert tasks_of(chain).scale("*", 0).predict().speed_up == math.inf
    assert tasks_of(torch.empty_like).predict().speed_up == 1.0


def test_what_takes_less_than_a_kernel_is_not_made_longer_by_half_precision() -> None:
    one = tasks_of(lambda x: x.new_empty(4, dtype=torch.float32).copy_(x[0, :4]))
    times = {a.name: a.us for a in one.activities}
    assert min(times.values()) < find_device("h100").kernel_us
    assert all(a.us <= times[a.name] for a in one.mixed_precision().activities)


def test_what_is_fused_in_a_program_saves_launches_and_traffic() -> None:
    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(torch.sigmoid(torch.relu(x)))

    with torch.no_grad():
        torch.compile(Chain(), backend="nimble")(torch.randn(4096, 4096))
    one = whatif(nimble_fx.programs()[-1], "h100")
    single = one.activities[0].us
    assert one.baseline_us == pytest.approx(3 * single)
    fused = one.fuse(lambda _: True)
    assert makespan(fused) == pytest.approx(single)
    assert fused.activities[0].bandwidth == pytest.approx(one.activities[0].bandwidth)
    assert makespan(one.fuse(lambda _: True, us=7)) == 7


def test_what_others_read_is_still_written_by_what_is_fused() -> None:
    class Read(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """`relu` is returned, and `sigmoid` is read by what is not fused with it."""
            first = torch.relu(x)
            second = torch.sigmoid(first)
            return torch.exp(second) + second, first

    with torch.no_grad():
        torch.compile(Read(), backend="nimble")(torch.randn(4096, 4096))
    one = whatif(nimble_fx.programs()[-1], "h100").streams(1)
    times = {a.name: a.us for a in one.activities}
    fixed = find_device("h100").kernel_us
    for pair in (["sigmoid", "exp"], ["relu", "sigmoid"]):
        fused = one.fuse(pair)
        took = {a.name: a.us for a in fused.activities}[pair[0]]
        assert took == pytest.approx(sum(times[name] for name in pair) - fixed)
