"""Code written for `torch.cuda.Nimble` runs with `nimble_fx.Nimble`, with eager's results."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import NotPreparedError, OptionError
from tests.support.eager import assert_same
from tests.support.models import Branchy, GoogLeNet, Inception


def test_the_originals_example_of_inference_runs() -> None:
    model = GoogLeNet()
    model.eval()
    dummy_input = torch.randn(1, 3, 16, 16)

    nimble_model = nimble_fx.Nimble(model)
    nimble_model.prepare(dummy_input, training=False)
    rand_input = torch.rand(1, 3, 16, 16)
    output = nimble_model(rand_input)

    assert_same(output, model(rand_input).detach())
    assert len(nimble_model.programs) == 1


def test_the_originals_example_of_training_runs() -> None:
    model = GoogLeNet()
    model.train()
    eager = copy.deepcopy(model)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nimble_model = nimble_fx.Nimble(model)
    nimble_model.prepare(torch.randn(4, 3, 16, 16), training=True)
    theirs = torch.optim.SGD(eager.parameters(), lr=0.1)

    for _ in range(3):
        rand_input, label = torch.rand(4, 3, 16, 16), torch.zeros(4, dtype=torch.long)
        optimizer.zero_grad()
        output = nimble_model(rand_input)
        loss = loss_fn(output, label)
        loss.backward()
        optimizer.step()

        theirs.zero_grad()
        expected = loss_fn(eager(rand_input), label)
        expected.backward()
        theirs.step()
        assert_same(loss, expected)
        assert_same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])
        assert_same(dict(model.state_dict()), dict(eager.state_dict()))
    assert len(nimble_model.programs) == 2


@pytest.mark.parametrize("mode", [False, True])
def test_calls_are_in_the_mode_that_was_prepared_and_the_modules_own_stays(mode: bool) -> None:
    model, x = Inception().train(mode), torch.randn(2, 8, 4, 4)
    nimble_model = nimble_fx.Nimble(model)
    nimble_model.prepare(x, training=not mode)
    assert model.training == mode
    expected = copy.deepcopy(model).train(not mode)(x)
    assert_same(nimble_model(x).detach(), expected.detach())
    assert len(nimble_model.programs) == (1 if mode else 2)


def test_parameters_and_buffers_are_the_modules_own() -> None:
    model, x = Branchy(), torch.randn(2, 4)
    nimble_model = nimble_fx.Nimble(model)
    nimble_model.prepare(x)
    with torch.no_grad():
        model.a.weight.mul_(2)
    assert_same(nimble_model(x), model(x).detach())


def test_preparing_for_training_gives_gradients_of_zeros_as_the_original_did() -> None:
    model = Branchy()
    model.b.requires_grad_(False)
    nimble_fx.Nimble(model).prepare(torch.randn(2, 4), training=True)
    assert_same(model.a.weight.grad, torch.zeros(4, 4))
    assert model.b.weight.grad is None
    model.a.weight.grad = torch.ones(4, 4)
    nimble_fx.Nimble(model).prepare(torch.randn(2, 4), training=True)
    assert_same(model.a.weight.grad, torch.ones(4, 4))


def test_one_stream_is_used_where_several_are_not_wanted() -> None:
    nimble_model = nimble_fx.Nimble(Branchy())
    nimble_model.prepare(torch.randn(2, 4), use_multi_stream=False, relaxed=True)
    assert [program.graph.n_streams for program in nimble_model.programs] == [1]
    nimble_model.prepare(torch.randn(2, 4))
    assert [program.graph.n_streams for program in nimble_model.programs] == [2]


def test_several_inputs_are_a_tuple_or_a_list() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    x, y = torch.randn(2), torch.randn(2)
    for dummy_inputs in ((x, y), [x, y]):
        nimble_model = nimble_fx.Nimble(Adds())
        nimble_model.prepare(dummy_inputs)
        assert_same(nimble_model(x, y), x + y)


@pytest.mark.parametrize("bad", [(), [], 3, {"x": torch.ones(2)}, (torch.ones(2), 3)], ids=str)
def test_other_inputs_are_refused_with_a_value_error_as_by_the_original(bad: object) -> None:
    with pytest.raises(ValueError, match="dummy_inputs") as caught:
        nimble_fx.Nimble(Branchy()).prepare(bad)  # type: ignore[arg-type]
    assert isinstance(caught.value, OptionError)


@pytest.mark.parametrize("model", ["a", torch.relu, nn.Linear])
def test_what_is_no_module_is_refused_at_once(model: Any) -> None:
    with pytest.raises(OptionError, match=r"Nimble takes a torch\.nn\.Module, not "):
        nimble_fx.Nimble(model)


def test_a_call_before_prepare_says_what_to_do() -> None:
    nimble_model = nimble_fx.Nimble(Branchy())
    assert not nimble_model.prepared
    assert repr(nimble_model) == "Nimble(Branchy: not prepared)"
    with pytest.raises(NotPreparedError, match=r"Nimble\(Branchy\) is not prepared: call prepare"):
        nimble_model(torch.randn(2, 4))
    nimble_model.prepare(torch.randn(2, 4))
    assert nimble_model.prepared
