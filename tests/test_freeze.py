"""Freezing, on a device that captures and replays on the CPU."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.devices.cpu import Cpu
from nimble_fx.emit import emit
from nimble_fx.errors import NimbleWarning, UnsupportedError
from nimble_fx.fallback import Reporter
from nimble_fx.freeze import (
    CAPTURES_PER_GRAPH,
    Frozen,
    Status,
    nothing_to_freeze,
    refuse_what_cannot_be_captured,
)
from nimble_fx.ir import TaskGraph
from nimble_fx.launch import Launcher
from nimble_fx.load import load
from nimble_fx.recording import WARM_UPS
from tests.eager import (
    assert_inference_is_eagers,
    assert_same,
    assert_training_is_eagers,
    twins,
)
from tests.models import CASES, Branchy
from tests.replaying import ReplayingDevice
from tests.schedules import scheduled, traced


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplayingDevice]:
    """Every program that the backend compiles runs on this device."""
    replaying = ReplayingDevice()
    monkeypatch.setattr("nimble_fx.backend.device_for", lambda _: replaying)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NimbleWarning)
        yield replaying


def frozen(function: Callable[..., Any], *inputs: Tensor, device: ReplayingDevice) -> Frozen:
    result = traced(function, *copy.deepcopy(inputs), functional=False)
    graph = scheduled(result.graph)
    loaded = load(emit(graph), "frozen.py")
    return Frozen(Launcher(graph, loaded, result.constants, device), Status(), Reporter())


@pytest.mark.parametrize("name", CASES)
def test_replays_give_eagers_results_state_and_mutations(
    name: str, device: ReplayingDevice
) -> None:
    assert_inference_is_eagers(CASES[name], n_calls=4)
    assert device.n_captures == len(nimble_fx.programs())
    assert device.n_replays >= 4 * (device.n_captures > 0)


@pytest.mark.parametrize("name", ["googlenet", "transformer_dropout", "dropout", "tables"])
def test_training_replays_give_eagers_gradients_and_statistics(
    name: str, device: ReplayingDevice
) -> None:
    assert_training_is_eagers(CASES[name])
    assert device.n_captures == 2
    assert device.n_replays == 6


def test_outputs_are_the_callers_to_keep(device: ReplayingDevice) -> None:
    run = frozen(lambda x: (x.exp(), x.exp()[0]), torch.randn(2, 2), device=device)
    inputs = [torch.randn(2, 2) for _ in range(3)]
    outputs = [run([x]) for x in inputs]
    for x, output in zip(inputs, outputs, strict=True):
        assert_same(list(output), [x.exp(), x.exp()[0]])


def test_outputs_that_share_memory_share_it_again_and_keep_their_strides(
    device: ReplayingDevice,
) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y, y[1], y.t(), x.sin()

    for x in (torch.randn(2, 3), torch.randn(2, 3)):
        y, row, transposed, apart = frozen(program, x, device=device)([x])
        y.zero_()
        assert torch.equal(row, torch.zeros(3))
        assert torch.equal(transposed, torch.zeros(3, 2))
        assert transposed.stride() == (1, 3)
        assert torch.equal(apart, x.sin())


def test_writing_to_an_output_that_the_backward_needs_is_an_error(device: ReplayingDevice) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.a(x).tanh()
            return hidden.exp(), hidden

    result, hidden = torch.compile(Keeps(), backend="nimble")(torch.randn(2, 4))
    with torch.no_grad():
        hidden.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize(
    "function", [lambda x: x > 0, lambda x: x.long() + 1, lambda x: (x.exp(), x)]
)
def test_empty_outputs_are_not_taken_for_empty_inputs(
    function: Callable[[Tensor], Any], device: ReplayingDevice
) -> None:
    x = torch.randn(0, 3)
    ours = frozen(function, x, device=device)([x])
    expected = function(x)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    assert [y.dtype for y in ours] == [y.dtype for y in expected]
    assert_same(ours, expected)


def test_an_output_in_another_dtype_shares_memory_too(device: ReplayingDevice) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y.view(torch.int32)[1:]

    for x in (torch.randn(4), torch.randn(4)):
        y, whole = frozen(program, x, device=device)([x])
        assert torch.equal(y[1:].view(torch.int32), whole)
        assert whole.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_an_output_that_is_a_later_part_of_an_input_that_starts_late(
    device: ReplayingDevice,
) -> None:
    x = torch.arange(10.0)[2:]
    run = frozen(lambda x: (x[3:], x.exp()[2:], x.exp()), x, device=device)
    assert_same(list(run([x])), [x[3:], x.exp()[2:], x.exp()])


def test_an_output_that_is_an_input_or_a_view_of_one_is_the_callers(
    device: ReplayingDevice,
) -> None:
    x = torch.randn(4, 4)
    run = frozen(lambda x: (x, x.t(), x[1:], x.cos()), x, device=device)
    for _ in range(2):
        same, transposed, rows, _cosine = run([x])
        assert same.data_ptr() == transposed.data_ptr() == x.data_ptr()
        assert torch.equal(rows, x[1:])
        assert rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_a_mutated_input_is_written_back_once_per_call(device: ReplayingDevice) -> None:
    def program(x: Tensor) -> Tensor:
        return x.add_(1).sum()

    run = frozen(program, torch.zeros(3), device=device)
    x = torch.zeros(3)
    for n in range(1, 4):
        (total,) = run([x])
        assert torch.equal(x, torch.full((3,), float(n)))
        assert total == 3 * n


def test_warm_up_leaves_state_and_random_numbers_alone(device: ReplayingDevice) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.calls: Tensor
            self.calls += 1
            return x + torch.rand_like(x) * self.calls

    model = Counts()
    compiled, x = torch.compile(model, backend="nimble"), torch.zeros(3)
    with torch.no_grad():
        torch.manual_seed(5)
        first = compiled(x)
        assert device.n_warm_ups == WARM_UPS
        assert torch.equal(model.calls, torch.ones(3))
        torch.manual_seed(5)
        assert torch.equal(first, torch.rand(3))


def test_the_inputs_are_emptied_and_may_be_dropped_by_the_caller(device: ReplayingDevice) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=device)
    args = [torch.ones(2)]
    run(args)
    assert args == []
    assert torch.equal(run([torch.full((2,), 2.0)])[0], torch.full((2,), 2.0).exp())


def test_moved_parameters_are_captured_again(device: ReplayingDevice) -> None:
    model = Branchy()
    eager = copy.deepcopy(model)
    compiled, x = torch.compile(model, backend="nimble"), torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        for net in (model, eager):
            net.a.weight.data = torch.full((4, 4), 0.5)
        assert_same(compiled(x), eager(x))
        assert_same(compiled(x), eager(x))
    assert device.n_captures == 2


def test_a_program_that_modules_share_keeps_a_capture_for_each(device: ReplayingDevice) -> None:
    blocks = [Branchy() for _ in range(3)]
    compiled = [torch.compile(block, backend="nimble") for block in blocks]
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            for ours, block in zip(compiled, blocks, strict=True):
                assert_same(ours(x), block(x))
    assert device.n_captures == 3


def test_parameters_that_move_in_each_call_are_given_up_on(device: ReplayingDevice) -> None:
    model = Branchy()
    options: dict[str, Any] = {"max_graphs": 2}
    compiled, x = torch.compile(model, backend="nimble", options=options), torch.randn(2, 4)
    kept, warned = [], []
    with torch.no_grad():
        for i in range(CAPTURES_PER_GRAPH * 2 + 3):
            kept.append(model.a.weight.data)
            model.a.weight.data = torch.full((4, 4), float(i))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert_same(compiled(x), model(x))
            warned += [(i, str(w.message)) for w in caught]
    assert device.n_captures == CAPTURES_PER_GRAPH * 2
    (third, dropped), (last, unfrozen) = warned
    assert (third, last) == (2, CAPTURES_PER_GRAPH * 2)
    assert "more than 2 sets of sizes and parameters" in dropped
    assert "runs unfrozen: sizes or addresses of parameters have changed 8 times" in unfrozen


def test_within_a_capture_of_the_users_the_program_runs_inline(device: ReplayingDevice) -> None:
    x = torch.ones(2)
    run = frozen(lambda x: x.exp() + x.sin(), torch.zeros(2), device=device)
    users = device.capture(1, lambda streams: run([x]), device.pool())
    for value in (1.0, 2.0):
        x.fill_(value)
        users.replay()
        assert torch.equal(users.outputs[0], x.exp() + x.sin())
    assert (device.n_captures, device.n_warm_ups) == (1, 0)


def test_a_failed_capture_runs_unfrozen_and_says_why_once() -> None:
    device = ReplayingDevice(fail=True)
    run = frozen(torch.exp, torch.zeros(2), device=device)
    with pytest.warns(
        NimbleWarning, match="runs unfrozen: capture failed: operation not permitted"
    ):
        (first,) = run([torch.ones(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (second,) = run([torch.ones(2)])
    assert torch.equal(first, torch.ones(2).exp())
    assert torch.equal(first, second)


def test_a_failure_in_warm_up_leaves_state_as_it_was(
    device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up = ReplayingDevice.warm_up

    def fail_late(self: ReplayingDevice, *args: Any, **kwargs: Any) -> None:
        warm_up(self, *args, **kwargs)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ReplayingDevice, "warm_up", fail_late)
    model, eager = twins(CASES["cache"], train=False)
    compiled, inputs = torch.compile(model, backend="nimble"), CASES["cache"].inputs()
    with torch.no_grad():
        with pytest.warns(NimbleWarning, match="capture failed: out of memory"):
            ours = compiled(*inputs)
        assert_same(ours, eager(*inputs))
    assert_same(dict(model.state_dict()), dict(eager.state_dict()))


def test_a_program_frozen_in_inference_mode_runs_outside_of_it(device: ReplayingDevice) -> None:
    run = frozen(torch.exp, torch.zeros(2), device=device)
    with torch.inference_mode():
        inside = torch.ones(2)
        run([inside])
    with torch.no_grad():
        for x in (torch.ones(2), inside):
            assert torch.equal(run([x])[0], torch.ones(2).exp())


def test_threads_that_replay_one_program_do_not_mix_their_inputs(device: ReplayingDevice) -> None:
    run = frozen(lambda x: x.exp() + x.sin(), torch.zeros(100), device=device)
    wrong: list[float] = []

    def work(value: float) -> None:
        x = torch.full((100,), value)
        for _ in range(50):
            if not torch.equal(run([x])[0], x.exp() + x.sin()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i / 8,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_summary_tells_whether_it_is_frozen(device: ReplayingDevice) -> None:
    with torch.no_grad():
        torch.compile(Branchy(), backend="nimble")(torch.randn(2, 4))
    assert "frozen   yes" in nimble_fx.programs()[0].summary()


def test_freeze_false_launches_each_time(device: ReplayingDevice) -> None:
    compiled = torch.compile(Branchy(), backend="nimble", options={"freeze": False})
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    assert device.n_captures == 0
    assert "freeze=False" in nimble_fx.programs()[0].summary()


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> TaskGraph:
    return scheduled(traced(function, *inputs).graph)


def test_nothing_is_lost_where_there_is_nothing_to_freeze() -> None:
    launches, views = graph_of(torch.exp, torch.zeros(2)), graph_of(torch.t, torch.zeros(2, 2))
    assert nothing_to_freeze(launches, Cpu()) == "cpu has no CUDA graphs"
    assert nothing_to_freeze(views, ReplayingDevice()) == "it launches nothing"
    assert nothing_to_freeze(launches, ReplayingDevice()) is None


def test_operators_that_cannot_be_captured_are_refused_by_name() -> None:
    graph, tags = graph_of(torch.exp, torch.zeros(2)), [torch.Tag.cudagraph_unsafe]
    refuse_what_cannot_be_captured(graph, ReplayingDevice())
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("unsafe(Tensor x) -> Tensor", tags=tags)
        op = torch.ops.nimble_tests.unsafe.default
        tasks = tuple(replace(task, target=op) for task in graph.tasks)
        with pytest.raises(UnsupportedError, match=r"exp \(nimble_tests.unsafe") as refused:
            refuse_what_cannot_be_captured(replace(graph, tasks=tasks), ReplayingDevice())
    assert refused.value.node == "exp"


def test_an_expanded_input_is_fed_each_element_once(device: ReplayingDevice) -> None:
    run = frozen(lambda x: x.exp(), torch.zeros(1, 2).expand(3, 2), device=device)
    for _ in range(2):
        x = torch.randn(1, 2).expand(3, 2)
        assert_same(list(run([x])), [x.exp()])


def test_a_program_with_symbolic_sizes_has_a_graph_for_each(device: ReplayingDevice) -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble", dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 5, 2, 3, 5):
            x = torch.randn(rows, 4)
            assert_same(compiled(x), model(x))
    assert (device.n_captures, device.n_replays) == (3, 6)
    assert "yes, 3 graphs" in nimble_fx.programs()[0].summary()


def conjugates(z: Tensor) -> tuple[Tensor, ...]:
    twice = z * 2
    return twice, twice.conj(), twice.conj().imag, torch.view_as_real(twice), z.conj()


def test_outputs_that_are_read_conjugated_or_negated_stay_so(device: ReplayingDevice) -> None:
    for z in (torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)):
        ours = frozen(conjugates, z, device=device)([z])
        for one, expected in zip(ours, conjugates(z), strict=True):
            assert torch.equal(one, expected)
            assert (one.is_conj(), one.is_neg()) == (expected.is_conj(), expected.is_neg())


def test_gradients_through_conjugates_are_eagers(device: ReplayingDevice) -> None:
    def power(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        return (spectrum.conj() * spectrum).real

    x = torch.randn(8, requires_grad=True)
    compiled = torch.compile(power, backend="nimble")
    gradients: list[Tensor | None] = []
    for run in (compiled, compiled, power):
        x.grad = None
        run(x).sum().backward()
        gradients.append(x.grad)
    assert_same(gradients[:2], [gradients[2]] * 2)
    assert device.n_captures == 2


def test_a_program_that_an_operator_of_its_own_calls_runs_it_unfrozen(
    device: ReplayingDevice,
) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.nimble_tests.again(x * 2)

    compiled = torch.compile(program, backend="nimble")

    def again(x: Tensor) -> Tensor:
        x = x.clone()  # kernels run late, and what the inner program is given may be this memory
        return x + 1 if x.sum() > 100 else compiled(x).clone()

    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("again(Tensor x) -> Tensor")
        library.impl("again", again, "CPU")
        library.impl("again", torch.empty_like, "Meta")
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 65.0))
