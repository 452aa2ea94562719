"""Models of torchvision, timm and transformers, with random weights: nothing is downloaded."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.model import Form, Model, image_form, mean_square

TOKENS = 128
"""The length of a text."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def _torchvision(name: str) -> Model:
    models = importlib.import_module("torchvision.models")
    build = lambda: models.get_model(name, weights=None)  # noqa: E731  # as timm's below
    return _images("torchvision", name, build, 224)


def _timm(name: str) -> Model:
    timm = importlib.import_module("timm")
    build = lambda: timm.create_model(name, pretrained=False)  # noqa: E731
    _, size, _ = timm.get_pretrained_cfg(name).input_size
    return _images("timm", name, build, size)


def _images(package: str, name: str, build: Callable[[], nn.Module], size: int) -> Model:
    return Model(
        name=f"{package}:{name}",
        title=name,
        source=package,
        n_parameters=count(build),
        inference=image_form("", build, size),
        training=(image_form("", build, size, batches=(32,)),),
    )


def _transformers(name: str) -> Model:
    """The bare model of an architecture, as its default configuration has it."""
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(name)
    build = lambda: _LastHidden(transformers.AutoModel.from_config(config))  # noqa: E731
    form = Form(
        title=f"{TOKENS} tokens",
        build=build,
        inputs=lambda batch: (torch.randint(config.vocab_size, (batch, TOKENS)),),
        output_shape=lambda batch: (batch, TOKENS, config.hidden_size),
        loss=mean_square,
    )
    return Model(f"transformers:{name}", name, "transformers", count(build), form)


class _LastHidden(nn.Module):
    """Token ids (batch, tokens) -> the last hidden states (batch, tokens, width)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids=ids, use_cache=False).last_hidden_state
        return states


def count(build: Callable[[], nn.Module]) -> int:
    """How many parameters a model has, without making their data."""
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


PACKAGES: Mapping[str, Callable[[str], Model]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}
"""How a package's model is made of its name there."""
