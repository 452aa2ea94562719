"""A small language model of transformers, with random weights, that generates token by token."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

N_TOKENS = 8
CACHE_LENGTH = 32


def language_model() -> LlamaForCausalLM:
    """Its weights are large, so that what it writes depends on all that it has read."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def twins() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A model and a copy of it."""
    model = language_model()
    return model, copy.deepcopy(model)


def prompts(length: int, n: int = 1) -> Tensor:
    return torch.randint(2, 64, (n, length))


def compiled_by(**options: Any) -> CompileConfig:
    """What tells `generate` to compile the step from a token to the next."""
    config = CompileConfig(backend="nimble", mode=None, options=options, fullgraph=True)
    config._compile_all_devices = True  # else transformers compiles on a GPU alone
    return config


def write(model: LlamaForCausalLM, prompt: Tensor, **settings: Any) -> Any:
    """The tokens that the model writes, the logits of each, and the cache that it leaves."""
    if "past_key_values" not in settings:
        settings = {"cache_implementation": "static", "max_cache_len": CACHE_LENGTH, **settings}
    defaults = {"do_sample": False, "max_new_tokens": N_TOKENS}
    results = {"return_dict_in_generate": True, "output_logits": True}
    torch.manual_seed(1)
    return model.generate(prompt, **{**defaults, **results, **settings})


def assert_wrote_the_same(ours: Any, expected: Any) -> None:
    """The same tokens, and the same logits and the same cache but for rounding."""
    assert torch.equal(ours.sequences, expected.sequences)
    assert len(ours.logits) == N_TOKENS
    torch.testing.assert_close(ours.logits, expected.logits, rtol=1e-4, atol=1e-4)
    for layer, other in zip(
        ours.past_key_values.layers, expected.past_key_values.layers, strict=True
    ):
        assert torch.equal(layer.cumulative_length, other.cumulative_length)
        torch.testing.assert_close(layer.keys, other.keys)
        torch.testing.assert_close(layer.values, other.values)
