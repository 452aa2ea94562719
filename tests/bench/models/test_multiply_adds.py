"""Convolutional networks have the published number of operations, so strides are right."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.models import (
    efficientnet,
    googlenet,
    hrnet,
    inception_v3,
    mobilenet_v2,
    resnet,
    squeezenet,
)
from bench.models.model import Model

pytestmark = pytest.mark.slow

FILES = (resnet, googlenet, inception_v3, mobilenet_v2, efficientnet, squeezenet, hrnet)

# Multiply-adds in billions, as in the lists of models of torchvision and, for HRNet, its authors,
# who divide by 2^30.
PUBLISHED = {
    "resnet50": 4.09,
    "resnet101": 7.80,
    "googlenet": 1.50,
    "inception_v3": 5.71,
    "mobilenet_v2": 0.30,
    "efficientnet_b0": 0.39,
    "efficientnet_b5": 10.27,
    "squeezenet1_1": 0.35,
    "hrnet_w18_small": 1.49 * 2**30 / 1e9,
}


@pytest.mark.parametrize("model", [m for f in FILES for m in f.MODELS], ids=lambda m: m.name)
def test_multiply_adds_are_as_published(model: Model) -> None:
    with torch.device("meta"):
        module, inputs = model.inference.build().eval(), model.inference.inputs(1)
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    billions = counter.get_total_flops() / 2e9
    assert billions == pytest.approx(PUBLISHED[model.name], abs=0.006)
