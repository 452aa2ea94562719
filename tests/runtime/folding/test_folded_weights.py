"""Values computed from weights are computed again exactly when a weight has changed."""

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Thread
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from nimble_fx.devices.virtual.device import Virtual
from nimble_fx.runtime.folding.folded_weights import MAX_SETS, FoldedWeights
from nimble_fx.runtime.folding.weight_sample import COMPARED_WHOLE
from tests.support.doubling import Doubling, doubled


@pytest.mark.parametrize("are_guarded", [True, False])
@pytest.mark.parametrize("are_tied", [True, False])
def test_it_is_computed_once_for_the_same_weights(are_guarded: bool, are_tied: bool) -> None:
    compute, weight = Doubling(), torch.ones(2)
    weights = [weight, weight if are_tied else torch.zeros(3)]
    folded = FoldedWeights(compute, [None, None], are_guarded=are_guarded)
    first = folded(weights)
    assert all(one is other for one, other in zip(first, folded(weights), strict=True))
    assert compute.n == 1


def test_it_is_computed_once_for_each_of_several_sets_of_weights() -> None:
    compute = Doubling()
    folded, sets = FoldedWeights(compute, [None]), [[torch.full((2,), i)] for i in range(MAX_SETS)]
    for _ in range(3):
        for weights in sets:
            assert torch.equal(folded(weights)[0], 2 * weights[0])
    assert compute.n == MAX_SETS
    sets[3][0].add_(1)
    for weights in sets:
        assert torch.equal(folded(weights)[0], 2 * weights[0])
    assert compute.n == MAX_SETS + 1


def test_in_each_mode_of_a_caller_they_are_found_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute, weights = Doubling(), [torch.ones(2), torch.zeros(3)]
    folded, search = FoldedWeights(compute, [None, None], are_guarded=False), FoldedWeights._kept
    searches: list[Any] = []

    def counted(*args: Any) -> Any:
        searches.append(args)
        return search(*args)

    monkeypatch.setattr(FoldedWeights, "_kept", counted)
    modes = torch.no_grad(), torch.inference_mode(), torch.autocast("cpu"), torch.enable_grad()
    for _ in range(3):
        for mode in modes:
            with mode:
                folded(weights)
    assert compute.n == 1
    assert len(searches) <= 3
    with torch.inference_mode():
        weights[1].data = torch.zeros(4)
        assert [each.shape for each in folded(weights)] == [(2,), (4,)]


def test_results_of_more_sets_are_freed_and_computed_again() -> None:
    compute = Doubling()
    folded, sets = FoldedWeights(compute, [None]), [[torch.ones(2)] for _ in range(MAX_SETS + 1)]
    results = [weakref.ref(folded(weights)[0]) for weights in sets]
    assert [result() is None for result in results] == [True] + [False] * MAX_SETS
    folded(sets[0])
    assert compute.n == MAX_SETS + 2


def test_results_of_a_set_go_when_it_has_changed() -> None:
    folded, weights = doubled(), [torch.zeros(2)]
    before = weakref.ref(folded(weights)[0])
    weights[0].add_(1)
    folded(weights)
    assert before() is None


def test_results_of_a_set_go_with_its_weights() -> None:
    folded, first, second = doubled(), [torch.zeros(2)], [torch.ones(2)]
    results = [weakref.ref(folded(weights)[0]) for weights in (first, second)]
    del first
    assert [result() is None for result in results] == [True, False]
    assert folded(second)[0] is results[1]()


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "in place": lambda m: m.weight.mul_(3),
    "a part": lambda m: m.weight[0].zero_(),
    "by an optimizer": lambda m: torch.optim.SGD(m.parameters(), 1.0).step(),
    "loaded": lambda m: m.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}),
    "assigned": lambda m: m.load_state_dict(
        {"weight": torch.ones(2, 2), "bias": torch.ones(2)}, assign=True
    ),
    "replaced": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(2, 2))),
    "statistics of a batch": lambda m: torch.native_batch_norm(
        torch.randn(4, 2), None, None, m.bias, m.weight[0], True, 0.5, 1e-5
    ),
    "through .data": lambda m: m.weight.data.mul_(3),
    "through NumPy": lambda m: m.weight.detach().numpy().fill(3),
    "moved": lambda m: setattr(m.weight, "data", torch.ones(2, 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change: Callable[[nn.Linear], Any]) -> None:
    model, folded = nn.Linear(2, 2), doubled(2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    folded([model.weight, model.bias])
    with torch.no_grad():
        change(model)
    expected = [2 * model.weight, 2 * model.bias]
    for one, other in zip(folded([model.weight, model.bias]), expected, strict=True):
        assert torch.equal(one, other)


def test_a_write_that_is_not_counted_while_it_computes_is_noticed() -> None:
    def compute(weight: Tensor) -> list[Tensor]:
        result = 2 * weight
        if not weight[0]:
            weight.data.fill_(1)
        return [result]

    weight, folded = torch.zeros(2), FoldedWeights(compute, [None])
    assert folded([weight])[0].tolist() == [0, 0]
    assert folded([weight])[0].tolist() == [2, 2]


def test_what_is_computed_under_autocast_is_not_rounded() -> None:
    folded = FoldedWeights(lambda a, b: [a @ b], [None])
    a, b = torch.randn(2, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        (result,) = folded([a, b])
    assert torch.equal(result, a @ b)


def test_results_of_a_weight_that_is_gone_are_not_those_of_one_in_its_place() -> None:
    memory, compute = bytearray(8), Doubling()
    folded = FoldedWeights(compute, [None])
    for n in (1, 2):
        weight = torch.frombuffer(memory, dtype=torch.float32)
        assert folded([weight])[0].tolist() == [0, 0]
        assert compute.n == n
        del weight


def test_memory_that_is_allocated_again_is_another_weights() -> None:
    folded = doubled()
    for value in range(20):
        weight = torch.full((COMPARED_WHOLE,), 0.0)
        weight.data[1000] = value  # not counted, and not at an end
        assert folded([weight])[0][1000] == 2 * value
        del weight


def test_a_counted_write_to_any_element_of_a_large_weight_is_noticed() -> None:
    weight, folded = torch.zeros(300, 300), doubled()
    for i in range(0, 300, 37):
        folded([weight])
        weight[i, (7 * i) % 300] = 1
        assert torch.equal(folded([weight])[0], 2 * weight)


def test_a_write_to_a_row_of_a_large_weight_that_is_not_counted_is_noticed() -> None:
    weight, folded = torch.zeros(300, 300), doubled()
    folded([weight])
    weight.data[7].fill_(1)
    assert torch.equal(folded([weight])[0], 2 * weight)


def test_fake_results_have_no_gradient() -> None:
    weight = FakeTensorMode().from_tensor(nn.Parameter(torch.ones(2)))
    assert not doubled()([weight])[0].requires_grad


def test_results_have_no_gradient() -> None:
    (result,) = doubled()([nn.Parameter(torch.ones(2))])
    assert not result.requires_grad


def test_weights_without_versions_are_computed_with_in_each_call() -> None:
    with torch.inference_mode():
        weight, folded = torch.ones(2), doubled()
        folded([weight])
        weight.add_(1)
        assert folded([weight])[0].tolist() == [4, 4]


def test_fake_weights_are_computed_with_in_each_call() -> None:
    weight, folded = torch.ones(2), doubled()
    folded([weight])
    with FakeTensorMode() as mode:
        assert isinstance(folded([mode.from_tensor(weight)])[0], FakeTensor)
    assert not isinstance(folded([weight])[0], FakeTensor)


def test_threads_get_the_tensors_of_their_weights() -> None:
    folded, wrong = doubled(), []

    def calls(value: float) -> None:
        weight = torch.full((100,), value)
        for _ in range(200):
            if folded([weight])[0][0].item() != 2 * value:
                wrong.append(value)

    threads = [Thread(target=calls, args=(float(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_that_come_in_the_first_call_compute_nothing_again() -> None:
    n_calls = count(1)

    def compute(weight: Tensor) -> list[Tensor]:
        sleep(0.2)  # the others come meanwhile
        return [weight * next(n_calls)]

    folded, weight = FoldedWeights(compute, [None]), torch.ones(2)
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda _: folded([weight])[0], range(3)))
    assert next(n_calls) == 2
    assert all(result is results[0] for result in results)


def test_results_on_a_device_with_graphs_are_in_memory_of_their_own() -> None:
    device, weight = Virtual(), torch.ones(2)
    folded = FoldedWeights(Doubling(), [None], device=device)
    (result,) = folded([weight])
    assert torch.equal(result, torch.full((2,), 2.0))
    weight.add_(1)
    (other,) = folded([weight])
    assert torch.equal(other, torch.full((2,), 4.0))
    assert folded([weight])[0] is other
