"""Language models of transformers with a static cache write what eager writes."""

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import StaticCache

import nimble_fx
from nimble_fx.ir.types import TensorType
from nimble_fx.program import Program
from tests.support.replaying import ReplayingDevice
from tests.support.writing import (
    CACHE_LENGTH,
    N_TOKENS,
    assert_wrote_the_same,
    compiled_by,
    language_model,
    prompts,
    twins,
    write,
)

pytestmark = pytest.mark.slow

VIRTUAL: dict[str, Any] = {"device": "virtual", "seed": 1}
KEPT = ("keys", "values", "cumulative_length")


@pytest.fixture(autouse=True)
def _nothing_falls_back() -> Iterator[None]:
    counters.clear()
    yield
    assert nimble_fx.fallbacks() == ()


@pytest.mark.parametrize("options", [{}, VIRTUAL], ids=["on the CPU", "frozen"])
def test_prompts_of_several_lengths_go_on_as_in_eager(options: dict[str, Any]) -> None:
    model, eager = twins()
    for length in (3, 9, 5):
        prompt = prompts(length)
        ours = write(model, prompt, compile_config=compiled_by(**options))
        assert_wrote_the_same(ours, write(eager, prompt))
    (step,) = nimble_fx.programs()
    assert step.status.n_captures == (3 if options else 0), "one for each call's new cache"


def test_padded_prompts_go_on_with_the_tokens_that_eager_draws() -> None:
    model, eager = twins()
    prompt = prompts(6, n=3)
    mask = torch.ones_like(prompt)
    mask[1, :2] = mask[2, :4] = 0
    ours = write(model, prompt, attention_mask=mask, compile_config=compiled_by(**VIRTUAL))
    assert_wrote_the_same(ours, write(eager, prompt, attention_mask=mask))
    drawn = {"attention_mask": mask, "do_sample": True, "temperature": 5.0}
    ours = write(model, prompt, compile_config=compiled_by(**VIRTUAL), **drawn)
    assert_wrote_the_same(ours, write(eager, prompt, **drawn))


def test_with_a_cache_that_is_kept_one_capture_is_replayed_for_each_token_whatever_the_weights(
    device: ReplayingDevice,
) -> None:
    model, eager = twins()
    cache = StaticCache(config=model.config, max_cache_len=CACHE_LENGTH)
    others = language_model().state_dict()
    for prompt in (prompts(3), prompts(7)):
        cache.reset()
        ours = write(model, prompt, past_key_values=cache, compile_config=compiled_by())
        assert_wrote_the_same(ours, write(eager, prompt))
        model.load_state_dict(others)
        eager.load_state_dict(others)
    assert (device.n_captures, device.n_replays) == (1, 2 * (N_TOKENS - 1))
    assert counters["nimble"]["captures"] == 1


def test_a_cache_without_room_for_warm_ups_is_enough() -> None:
    """Each run of the step writes one place further on, and there is one place left."""
    model, eager = twins()
    prompt, settings = prompts(3), {"max_new_tokens": 2, "max_cache_len": None}
    ours = write(model, prompt, compile_config=compiled_by(**VIRTUAL), **settings)
    assert torch.equal(ours.sequences, write(eager, prompt, **settings).sequences)


def test_a_step_copies_a_token_its_position_and_its_mask_and_writes_the_cache_where_it_is() -> None:
    write(language_model(), prompts(3), compile_config=compiled_by(freeze=False))
    (step,) = nimble_fx.programs()
    assert bytes_copied(step) == {
        "kwargs_input_ids": 8,
        "kwargs_position_ids": 8,
        "kwargs_attention_mask": CACHE_LENGTH,
    }
    aten, layer = torch.ops.aten, "kwargs_past_key_values_layers_0_"
    assert {
        name: task.target for task in step.graph.tasks for name in task.writes if layer in name
    } == {
        f"{layer}keys": aten.index_copy_.default,
        f"{layer}values": aten.index_copy_.default,
        f"{layer}cumulative_length": aten.add_.Tensor,
    }
    assert aten.copy_.default not in {task.target for task in step.graph.tasks}


def test_a_cache_that_is_first_used_in_compiled_code_is_copied_and_ends_as_in_eager() -> None:
    model, eager = twins()
    model.forward = torch.compile(model.forward, backend="nimble", options=VIRTUAL)
    prompt = prompts(3)
    assert_wrote_the_same(write(model, prompt), write(eager, prompt))
    _, step = nimble_fx.programs()
    copied = bytes_copied(step)
    cached = [copied[f"kwargs_past_key_values_layers_0_{k}"] for k in KEPT]
    assert cached == [2 * 8 * CACHE_LENGTH * 4, 2 * 8 * CACHE_LENGTH * 4, 8]


def test_a_cache_that_is_made_before_compiled_code_uses_it_is_read_where_it_is() -> None:
    model, eager = twins()
    model.forward = torch.compile(model.forward, backend="nimble")
    prompt, cache = prompts(3), StaticCache(config=model.config, max_cache_len=CACHE_LENGTH)
    cache.early_initialization(1, 2, 8, model.dtype, model.device)
    assert_wrote_the_same(write(model, prompt, past_key_values=cache), write(eager, prompt))
    for program in nimble_fx.programs():
        assert not any("past_key_values" in name for name in bytes_copied(program))


def bytes_copied(program: Program) -> dict[str, int]:
    """The inputs that a frozen program copies at each call."""
    given = {value.name: value.type for value in program.graph.inputs if not value.static}
    return {
        name: prod(map(int, kind.shape)) * kind.dtype.itemsize
        for name, kind in given.items()
        if isinstance(kind, TensorType)
    }
