"""On a GPU, contests, times of tasks and memory pools are measured."""

import pytest
import torch

import nimble_fx
from bench.measuring.timing import gpu_stopwatch
from bench.memory import pools
from bench.models.registry import find
from bench.peers.baselines import peers, policies
from bench.peers.comparison_case import Contest, Step, hold
from bench.policies import POLICIES

pytestmark = pytest.mark.gpu


def test_a_stopwatch_sees_what_the_stream_was_given() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    x @ x  # which loads cuBLAS
    times = []
    for n in (1, 50):
        seconds = gpu_stopwatch()
        for _ in range(n):
            x @ x
        times.append(seconds())
    assert 0 < times[0] < times[1]


@pytest.mark.parametrize("name", ["squeezenet1_1", "ensemble_8"])
@pytest.mark.parametrize("training", [False, True])
def test_every_policy_is_frozen_and_right(name: str, training: bool) -> None:
    model, device = find(name), torch.device("cuda:0")
    form = model.training[0] if training else model.inference
    contestants = {"eager": peers(device, training)["eager"], **policies(list(POLICIES))}
    row = hold(Contest(model, form, 2, training, device, rounds=2), contestants)
    assert {name: result.error for name, result in row.results.items() if result.error} == {}
    assert all(schedule.frozen for schedule in row.schedules)
    assert row.floor_error is None


@pytest.mark.parametrize("training", [False, True])
def test_a_pool_that_forward_and_backward_share_is_counted_once(training: bool) -> None:
    found = find("ensemble_8")
    form = found.training[0] if training else found.inference
    model = form.build().train(training).cuda()
    inputs = tuple(x.cuda() for x in form.inputs(2))
    measured = pools(Step(form, training), model, inputs, "nimble")
    by_program = [sum(program.status.nbytes) for program in nimble_fx.programs()]
    assert len(by_program) == 1 + training
    assert max(by_program) <= measured < sum(by_program) + (not training)
