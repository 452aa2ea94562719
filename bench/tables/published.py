"""Published times on GPUs, and the predictions of the roofline for the same kernels.

The roofline's constants were set with these times in mind, mostly AlexNet's, so the mean error is
that of a fit, not of a prediction: without AlexNet it was 21%.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import mean

import torch
from torch import nn

from bench.models.model import image_form
from bench.models.registry import find
from bench.problems.model_graphs import Traces
from nimble_fx.cost.roofline import Roofline
from nimble_fx.devices.specs import DEVICES, Device
from nimble_fx.frontend.models.model_function import unique_function
from nimble_fx.ir.task_graph import Task, TaskGraph, target_name

LIMIT = 0.1766
"""The mean error that DNN-Chip Predictor (Zhao et al., ICASSP 2020) reports of its predictions."""

A100_40GB = replace(DEVICES["a100"], name="a100-40gb", gbps=1555)

_NORM = "aten._native_batch_norm_legit_no_training.default"
_RELU = ("aten.relu.default", "aten.relu_.default")
_CONVOLUTION = "aten.convolution.default"


@dataclass(frozen=True)
class Published:
    """A published time, on one stream.

    Attributes:
        model: a model of the zoo, or "alexnet".
        device: the device on which it was measured.
        milliseconds: the time of one call.
        source: the publication.
        fused: whether batch norm and ReLU are part of the convolution before them.
        batch: the batch size.
    """

    model: str
    device: Device
    milliseconds: float
    source: str
    fused: bool = False
    batch: int = 1


PUBLISHED = (
    Published("inception_v3", DEVICES["v100"], 6.51, "IOS, MLSys 2021, sequential", fused=True),
    Published("nasnet_a_large", DEVICES["v100"], 22.95, "IOS, MLSys 2021, sequential", fused=True),
    Published("googlenet", A100_40GB, 1.87, "Opara, 2025, one-stream CUDA graph"),
    Published("alexnet", A100_40GB, 5.285, "HolisticTraceAnalysis, a trace's kernels", batch=128),
)
"""IOS's SqueezeNet and RandWire differ from the zoo's, and are left out."""


@dataclass(frozen=True)
class Comparison:
    """A published time and its prediction, in milliseconds."""

    model: str
    device: str
    source: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """The relative error of the prediction; above 0 if it is too long."""
        return self.predicted / self.published - 1


def comparisons() -> list[Comparison]:
    """All published times, each with the sum of its kernels by the roofline."""
    return [_compared(each) for each in PUBLISHED]


def mean_error(compared: Sequence[Comparison]) -> float:
    """The mean of the absolute errors."""
    return mean(abs(each.error) for each in compared)


def mean_ratio(compared: Sequence[Comparison]) -> float:
    """The geometric mean of predicted over published."""
    return exp(mean(log(each.predicted / each.published) for each in compared))


def alexnet() -> nn.Module:
    """AlexNet as torchvision has it, without dropout: (N, 3, 224, 224) -> logits (N, 1000).

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
    arXiv:1404.5997.
    """
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU()),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)),
    )


def kernels(graph: TaskGraph, fused: bool) -> list[Task]:
    """The tasks that are kernels of their own.

    Args:
        graph: a traced graph.
        fused: whether to leave out operators that are part of the convolution before them: batch
            norm, and the ReLU of a convolution or of a batch norm.
    """
    return [t for t in graph.launching if not (fused and _is_epilogue(t, graph))]


def _is_epilogue(task: Task, graph: TaskGraph) -> bool:
    name = target_name(task.target)
    before = {target_name(graph.by_name[each].target) for each in task.after}
    return name == _NORM or (name in _RELU and bool(before) and before <= {_CONVOLUTION, _NORM})


def _compared(published: Published) -> Comparison:
    torch.manual_seed(0)
    torch.compiler.reset()
    if published.model == "alexnet":
        form = image_form("", alexnet, 224)
    else:
        form = find(published.model).inference
    model, inputs = form.build(), form.inputs(published.batch)
    traces = Traces()
    with torch.no_grad():
        torch.compile(unique_function(model.eval()), backend=traces)(*inputs)
    us = 0.0
    for graph in traces.graphs:
        costs = Roofline(published.device)(graph)
        us += sum(costs[task.name].us for task in kernels(graph, published.fused))
    return Comparison(
        published.model, published.device.name, published.source, published.milliseconds, us / 1e3
    )
