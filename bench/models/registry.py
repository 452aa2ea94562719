"""Every model by its name: those of this directory, and those of packages that are installed."""

from collections.abc import Mapping
from difflib import get_close_matches

from bench.models import (
    amoebanet,
    bert,
    darts,
    deepfm,
    dlrm,
    efficientnet,
    ensemble,
    googlenet,
    hrnet,
    inception_v3,
    lstm,
    mobilenet_v2,
    moe,
    nasnet,
    randwire,
    resnet,
    sparse_autoencoder,
    sparse_dnn,
    spiking,
    squeezenet,
    two_tower,
)
from bench.models.model import Model
from bench.models.packages import PACKAGES, is_installed

_FILES = (
    *(resnet, googlenet, inception_v3, mobilenet_v2, efficientnet, squeezenet, hrnet),
    *(nasnet, amoebanet, darts, randwire),
    *(bert, lstm, moe, ensemble, dlrm, deepfm, two_tower),
    *(sparse_autoencoder, sparse_dnn, spiking),
)

ZOO: Mapping[str, Model] = {model.name: model for file in _FILES for model in file.MODELS}
"""The models that are written here, in the order in which they are listed."""


class UnknownModelError(ValueError):
    """There is no model of that name; the message says which there are."""


def find(name: str) -> Model:
    """The model of a name such as "resnet50" or "torchvision:resnet18".

    Raises:
        UnknownModelError: there is none.
    """
    if name in ZOO:
        return ZOO[name]
    package, _, wanted = name.partition(":")
    if package in PACKAGES and not is_installed(package):
        raise UnknownModelError(f"{name}: {package} is not installed")
    if package in PACKAGES:
        try:
            return PACKAGES[package](wanted)
        except (ValueError, RuntimeError, KeyError) as error:
            raise UnknownModelError(f"{package} has no model {wanted!r}: {error}") from error
    near = get_close_matches(name, ZOO, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    prefixes = ", ".join(f"{package}:NAME" for package in PACKAGES)
    known = ", ".join(ZOO)
    raise UnknownModelError(f"no model {name!r}; {meant}there are {known}; and {prefixes}")
