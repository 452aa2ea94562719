"""A forward and its backward share memory, and no backward reads what a later forward wrote."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nimble_fx.runtime.capture.freeze import FrozenProgram
from tests.support.eager import assert_same
from tests.support.replaying import ReplayingDevice


class Deep(nn.Module):
    """Each layer saves something for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.a(x))
        return torch.sigmoid(self.b(hidden)) * hidden.exp()


def both(
    dynamic: bool | None = None, **options: Any
) -> tuple[Deep, Deep, Callable[[Tensor], Tensor]]:
    """A model, its twin, and the first of them compiled."""
    model, eager = Deep(), Deep()
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="nimble", dynamic=dynamic, options=options)
    return model, eager, compiled


def gradients(net: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in net.parameters()]


@pytest.fixture
def made(device: ReplayingDevice, monkeypatch: pytest.MonkeyPatch) -> list[FrozenProgram]:
    """What the backend freezes, in order."""
    programs: list[FrozenProgram] = []

    def watched(*args: Any) -> FrozenProgram:
        programs.append(FrozenProgram(*args))
        return programs[-1]

    monkeypatch.setattr("nimble_fx.program.FrozenProgram", watched)
    return programs


def test_a_backward_reads_what_was_saved_where_the_forward_left_it(
    device: ReplayingDevice, made: list[FrozenProgram]
) -> None:
    model, eager, compiled = both()
    for _ in range(3):
        for net, run in ((model, compiled), (eager, eager)):
            net.zero_grad()
            run(torch.ones(2, 4)).sum().backward()
        assert_same(gradients(model), gradients(eager))
    assert device.n_captures == 2
    (backward,) = [program for program in made if program._options.is_backward]
    (key,) = backward._cache._graphs
    assert len(key.fixed) >= 2


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [2, 0, 1]])
def test_several_forwards_before_their_backwards(order: list[int], device: ReplayingDevice) -> None:
    model, eager, compiled = both()
    xs = [torch.randn(2, 4) for _ in order]
    for _ in range(2):
        for net, run in ((model, compiled), (eager, eager)):
            net.zero_grad()
            losses = [run(x).sum() for x in xs]
            for i in order:
                losses[i].backward()
        assert_same(gradients(model), gradients(eager))
    assert device.n_captures == 4


def test_a_graph_saves_in_place_again_once_it_awaits_no_backward(
    device: ReplayingDevice, made: list[FrozenProgram]
) -> None:
    _, _, compiled = both()
    losses = [compiled(torch.randn(2, 4)).sum() for _ in range(2)]
    while losses:
        losses.pop().backward()
    (forward,) = [program for program in made if not program._options.is_backward]
    graphs = {key.saves_in_place: graph for key, graph in forward._cache._graphs.items()}
    before = graphs[True].n_replays
    compiled(torch.randn(2, 4)).sum().backward()
    assert graphs[True].n_replays == before + 1


def test_a_graph_that_is_retained_can_be_gone_through_twice(device: ReplayingDevice) -> None:
    model, eager, compiled = both()
    x, other = torch.randn(2, 4), torch.randn(2, 4)
    for net, run in ((model, compiled), (eager, eager)):
        loss = run(x).sum()
        loss.backward(retain_graph=True)
        run(other)
        loss.backward()
        net.zero_grad(set_to_none=False)
        loss = run(other).sum()
        loss.backward()
    assert_same(gradients(model), gradients(eager))


def test_a_forward_whose_result_is_dropped_is_waited_for_by_nobody(
    device: ReplayingDevice,
) -> None:
    _, _, compiled = both()
    for _ in range(4):
        compiled(torch.randn(2, 4))
    assert device.n_captures == 1


def test_who_refers_to_a_weight_or_an_input_keeps_no_graph_waiting(device: ReplayingDevice) -> None:
    model, _, compiled = both()
    x = torch.randn(2, 4)
    held = list[Tensor]()
    for _ in range(3):
        compiled(x).sum().backward()
        held += [model.b.weight.detach(), x.detach()]
    assert device.n_captures == 2


def test_gradients_are_the_callers_even_without_copies(device: ReplayingDevice) -> None:
    model, eager, compiled = both(copy_outputs=False)
    for run in (compiled, eager):
        for i in range(3):  # they are accumulated
            run(torch.full((2, 4), float(i))).sum().backward()
    assert_same(gradients(model), gradients(eager))


def test_an_output_that_is_also_saved_is_the_callers(device: ReplayingDevice) -> None:
    class Shows(Deep):
        def forward(self, x: Tensor) -> Any:
            hidden = torch.tanh(self.a(x))
            return torch.sigmoid(self.b(hidden)) * hidden.exp(), hidden

    model = Shows()
    eager = Shows()
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="nimble")
    kept = []
    for x in (torch.randn(2, 4), torch.randn(2, 4)):
        ours, expected = compiled(x), eager(x)
        kept.append((ours[1], expected[1]))
        for net, (result, hidden) in ((model, ours), (eager, expected)):
            net.zero_grad()
            (result.sum() + hidden.square().sum()).backward()
        assert_same(gradients(model), gradients(eager))
    for ours, expected in kept:
        assert_same(ours, expected)


class SavedGradient(torch.autograd.Function):
    """The gradient of one input is what it saved; that of the other is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        saved = x.exp()
        ctx.save_for_backward(saved)
        return saved.sin() + y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.saved_tensors[0], grad * 3


def test_a_gradient_that_a_forward_saved_is_handed_out(device: ReplayingDevice) -> None:
    compiled = torch.compile(lambda x, y: SavedGradient.apply(x, y), backend="nimble")
    for _ in range(2):
        x, y = (torch.randn(2, 4, requires_grad=True) for _ in range(2))
        compiled(x, y).sum().backward()
        assert_same([x.grad, y.grad], [x.detach().exp(), torch.full((2, 4), 3.0)])
        del x, y
    assert device.n_captures == 2


FORWARDS = st.tuples(st.integers(0, 1), st.integers(2, 4))
BACKWARDS = st.integers(0, 3)


@settings(max_examples=6)
@given(
    st.lists(st.one_of(FORWARDS, BACKWARDS), min_size=4, max_size=14),
    st.sampled_from([{"max_graphs": 8}, {"max_graphs": 1}, {"copy_outputs": False}]),
)
def test_forwards_and_backwards_in_any_order_give_eagers_gradients(
    steps: list[Any], options: dict[str, Any]
) -> None:
    """Of two models that share a program, with several sizes."""
    torch.compiler.reset()
    silent = {"device": "virtual", "on_fallback": "silent", **options}
    nets = [both(dynamic=True, **silent) for _ in range(2)]
    waiting: list[list[Tensor]] = []
    for step in steps:
        if isinstance(step, tuple):
            which, rows = step
            _, eager, compiled = nets[which]
            x = torch.randn(rows, 4)
            waiting.append([compiled(x).sum(), eager(x).sum()])
        elif waiting:
            for loss in waiting.pop(step % len(waiting)):
                loss.backward()
    for model, eager, _ in nets:
        assert_same(gradients(model), gradients(eager))


def train(run: Callable[[Tensor], Tensor], *xs: Tensor) -> None:
    torch.stack([run(x).sum() for x in xs]).sum().backward()


def test_a_capture_overwrites_nothing_that_one_made_after_it_has_saved(
    device: ReplayingDevice,
) -> None:
    pairs = [both() for _ in range(2)]
    x = torch.randn(2, 4)
    for _, eager, compiled in pairs:  # so the first is captured first
        train(compiled, x)
        train(eager, x)
    for kind in (1, 2):
        first, second = (pair[kind] for pair in pairs)
        waiting = second(x).sum()
        train(first, x)
        waiting.backward()
    for model, eager, _ in pairs:
        assert_same(gradients(model), gradients(eager))


@pytest.mark.parametrize("order", [[2, 5, 3], [5, 3, 2], [3, 2, 5]])
def test_forwards_of_several_sizes_before_their_backwards(
    order: list[int], device: ReplayingDevice
) -> None:
    model, eager = Deep(), Deep()
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="nimble", dynamic=True)
    for rows in ([2], [3], [5], order):
        for run in (compiled, eager):
            train(run, *[torch.full((n, 4), float(n)) for n in rows])
    assert_same(gradients(model), gradients(eager))


def test_layers_that_share_code_are_called_in_another_order_than_captured(
    device: ReplayingDevice,
) -> None:
    layers = [both() for _ in range(4)]
    for order in ([0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0]):
        for kind in (1, 2):
            x = torch.full((2, 4), 0.5)
            for i in order:
                x = layers[i][kind](x)
            x.sum().backward()
    for model, eager, _ in layers:
        assert_same(gradients(model), gradients(eager))
