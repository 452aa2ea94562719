"""The summary of a program has the facts on one screen."""

import re

import torch

import nimble_fx
from tests.support.saved import branchy_program


def test_the_summary_is_one_screen_with_the_facts() -> None:
    text = branchy_program().summary()
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert lines[0] == "Branchy.forward"
    for fact in (
        "tasks    5 launched, 2 without a kernel",
        "streams  2 (width 2)",
        "waits    1 for 4 dependencies between tasks",
        "forks    1 from stream 0, 0 joined to it",
        "runs on  cpu",
        "frozen   no: cpu has no CUDA graphs",
    ):
        assert fact in text


def test_the_summary_says_how_many_operators_the_tasks_compute() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.SiLU())
    x = torch.randn(1, 4, 8, 8).to(memory_format=torch.channels_last)
    folded = nimble_fx.compile(model.eval(), x, fold_weights=True).programs[0]
    unfolded = nimble_fx.compile(model, x, fold_weights=False).programs[0]
    assert "1 launched; PyTorch traced 3 operators" in folded.summary()
    assert (
        "3 launched, 1 without a kernel (views, items of results); PyTorch traced 3 operators"
        in unfolded.summary()
    )


def test_memory_of_folded_weights_is_counted_once() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(32, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight.tanh()
            row = weight[:1].exp().expand(32, 32)
            return x @ weight + x @ weight.t() + weight[0] + x @ row

    compiled = nimble_fx.compile(Model(), torch.randn(2, 32), fold_weights=True)
    assert "folded   4 weights of 4.12 KiB" in compiled.programs[0].summary()


def test_tensors_are_named_before_symbolic_sizes() -> None:
    compiled = torch.compile(lambda x, y: x.exp() + y, backend="nimble", dynamic=True)
    compiled(torch.ones(2, 3), torch.ones(2, 3))
    (line,) = [line for line in nimble_fx.programs()[-1].summary().splitlines() if "inputs" in line]
    assert re.fullmatch(r"  inputs   \w+ f32\[(\w+), (\w+)\], \w+ f32\[\1, \2\], 2 sizes", line)
