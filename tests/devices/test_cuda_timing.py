"""How calls and replays are timed on CUDA, whatever the clock says. Needs a GPU."""

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil

import pytest
import torch

from nimble_fx.devices.cuda import N_REPEATS, N_SAMPLES, Cuda
from tests.support.bits import assert_same_bits

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Cuda:
    return Cuda.get(torch.device("cuda", 0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[float]], None]:
    """Sets the times that the device is said to take, in seconds; what is timed runs."""

    def set_times(seconds: Iterator[float]) -> None:
        def timed(call: Callable[[], object]) -> float:
            call()
            return next(seconds)

        monkeypatch.setattr("nimble_fx.devices.cuda._gpu_seconds", timed)

    return set_times


@pytest.mark.parametrize("n_calls", [1, 3, 70])
def test_a_call_takes_its_part_of_a_replay(
    n_calls: int, cuda: Cuda, clock: Callable[[Iterator[float]], None]
) -> None:
    clock(iter([0.1] * N_SAMPLES))
    xs = [torch.ones(2, device="cuda") for _ in range(n_calls)]
    seconds = cuda.seconds([partial(torch.Tensor.add_, x, 1) for x in xs])
    n_repeats = ceil(N_REPEATS / n_calls)
    assert seconds == pytest.approx(0.1 / (n_repeats * n_calls))
    torch.cuda.synchronize()
    expected = 1 + 1 + (1 + N_SAMPLES) * n_repeats  # what it was, the warm-up, the replays
    assert_same_bits([x.cpu() for x in xs], [torch.full((2,), float(expected))] * n_calls)


def test_the_median_sample_is_a_calls_time(
    cuda: Cuda, clock: Callable[[Iterator[float]], None]
) -> None:
    clock(iter([100.0, 5.0, 1.0]))
    seconds = cuda.seconds([lambda: torch.ones(2, device="cuda")])
    assert seconds == pytest.approx(5 / N_REPEATS)


def test_a_replay_takes_its_part_of_several(
    cuda: Cuda, clock: Callable[[Iterator[float]], None]
) -> None:
    clock(iter([0.3]))
    n_replays = []
    assert cuda.time_us(lambda: n_replays.append(1), 3) == pytest.approx(0.1e6)
    assert len(n_replays) == 3


def test_calls_are_timed_while_no_other_thread_captures(cuda: Cuda) -> None:
    held = list[bool]()
    cuda.seconds([lambda: held.append(cuda.exclusive().is_held_here)])
    assert held
    assert all(held)


def test_a_replay_that_is_timed_draws_no_random_numbers_of_the_users(cuda: Cuda) -> None:
    before = torch.cuda.get_rng_state()
    cuda.time_us(lambda: torch.rand(3, device="cuda"), 2)  # type: ignore[arg-type]
    assert torch.equal(torch.cuda.get_rng_state(), before)
