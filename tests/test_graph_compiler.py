"""The outputs of training programs are labeled with what they are."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.ir.task_graph import Ref, TaskGraph
from nimble_fx.verify import verify_source


class Distinct(nn.Module):
    """Parameters and inputs of different shapes, some of them without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.second = nn.Linear(3, 5)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu()) * weight


def test_each_gradient_is_labeled_with_what_it_is_the_gradient_of() -> None:
    model = Distinct()
    inputs = torch.randn(7, 2), torch.randn(7, 5, requires_grad=True)
    compiled = nimble_fx.compile(model, inputs, training=True, device="virtual")
    forward, backward = (program.graph for program in compiled.programs)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    shapes["weight"] = (7, 5)
    found = {}
    for label, output in zip(backward.labels, backward.outputs, strict=True):
        prefix, _, of = label.partition("gradient of ")
        assert not prefix
        if isinstance(output, Ref):
            found[of] = getattr(backward.by_name[output.name].type, "shape", None)
    assert found == shapes
    n_saved = len(backward.inputs) - 1  # and the gradient of the model's result
    assert forward.labels[-n_saved:] == ("saved for the backward",) * n_saved
    assert set(forward.labels[:-n_saved]) == {""}


def backward_of(function: object, *inputs: Tensor, dynamic: bool = False) -> TaskGraph:
    options = {"device": "virtual", "kernels": "aten", "freeze": False}
    compiled = torch.compile(function, backend="nimble", options=options, dynamic=dynamic)  # type: ignore[call-overload]
    compiled(*inputs).sum().backward()
    return nimble_fx.programs()[-1].graph


def test_symbolic_sizes_have_no_gradients() -> None:
    graph = backward_of(lambda x, y: x * x.shape[0] + y, *ones(5, 5), dynamic=True)
    assert "gradient of x" in graph.labels
    assert set(graph.labels) == {"", "gradient of x", "gradient of y"}


def test_parameters_with_similar_names_have_those_of_the_model() -> None:
    class Similar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.a_weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) * self.a_weight

    labels = backward_of(Similar(), torch.ones(2, 2)).labels
    assert {"gradient of a.weight", "gradient of a_weight"} <= set(labels)


class Odd(nn.Module):
    """Its parameter has a name that would end a comment, and its input that of another."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.odd = nn.ParameterDict({name: torch.ones(3)})

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        (odd,) = self.odd.values()
        return x * self.weight * weight + odd


@pytest.mark.parametrize("name", ["a\nimport os", "b\r", "\udcff", "a\\", 'a"""', "\x1b[31m"])
def test_a_label_is_one_line_whatever_the_name(name: str, tmp_path: Path) -> None:
    graph = backward_of(Odd(name), *ones(3, 3))
    assert len(set(graph.labels)) == len(graph.labels) == 4
    assert all(label.isprintable() for label in graph.labels)
    program = nimble_fx.programs()[-1]
    assert program.graph == graph
    verify_source(program.source, graph)
    program.save(tmp_path / "program")
    assert nimble_fx.load(tmp_path / "program").graph == graph


def test_gradients_that_are_not_those_of_the_inputs_have_no_labels() -> None:
    """AOTAutograd replaces inputs that share memory, one of which is written, by their base."""

    def writes(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (y * w).sin()

    base, (w,) = torch.ones(6), ones(4)
    graph = backward_of(writes, base[:4], base[2:], w)
    assert graph.labels == ()
    assert len(graph.outputs) != 3


def ones(*sizes: int) -> list[Tensor]:
    return [torch.ones(size, requires_grad=True) for size in sizes]
