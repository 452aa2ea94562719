"""Models with packed matrices that change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from tests.support.accuracy import assert_as_accurate

FOLDED: dict[str, Any] = {"fold_weights": True}  # whatever is faster


class Products(nn.Module):
    """Products of one row and of several by large matrices, one of which is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.square = nn.Linear(256, 1024), nn.Linear(512, 512)

    def forward(self, row: Tensor, rows: Tensor) -> Tensor:
        y = torch.tanh(self.wide(row))
        return y + self.square(torch.relu(self.square(rows))).sum()


def products_inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(1, 256), torch.randn(3, 512)


CHANGES_OF_PRODUCTS: tuple[Callable[[Products], Any], ...] = (
    lambda m: m,
    lambda m: m.wide.weight.mul_(2),
    lambda m: m.square.bias.add_(1),
    lambda m: setattr(m.square, "weight", nn.Parameter(torch.randn(512, 512).t())),
    lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    lambda m: m.to(torch.float64).to(torch.float32),
    lambda m: setattr(m.square, "bias", nn.Parameter(torch.randn(1024)[::2])),
)


@pytest.mark.parametrize("kernels", ["aten", "inductor"])
def test_changed_matrices_are_packed_again(kernels: str) -> None:
    torch.manual_seed(0)
    model = Products().eval()
    options: dict[str, Any] = FOLDED | {"kernels": kernels, "on_fallback": "error"}
    compiled = torch.compile(model, backend="nimble", options=options)
    with torch.no_grad():
        for change in CHANGES_OF_PRODUCTS:
            change(model)
            for _ in range(2):
                inputs = products_inputs()
                assert_as_accurate(model, inputs, [compiled(*inputs)])
    assert all("_linear_pointwise" in program.source for program in nimble_fx.programs()[-2:])


def test_a_matrix_that_is_used_twice_has_one_copy() -> None:
    (program,) = nimble_fx.compile(Products().eval(), products_inputs(), **FOLDED).programs
    assert "2 weights of 2.0 MiB, computed from the model's" in program.summary()
    program.verify()


def test_sizes_that_depend_on_data_may_be_added() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            return torch.relu(self.layer(x) + y[mask])

    model, mask = Masked().eval(), torch.tensor([True, False, True])
    inputs = torch.randn(1, 4, 6, 6), torch.randn(3, 4, 6, 6), mask
    compiled = torch.compile(model, backend="nimble", options=FOLDED, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_as_accurate(model, inputs, [compiled(*inputs)])


def test_a_saved_program_packs_the_matrices_that_it_is_bound_to(tmp_path: Path) -> None:
    (program,) = nimble_fx.compile(Products().eval(), products_inputs(), **FOLDED).programs
    other, inputs = Products().eval(), products_inputs()
    run = nimble_fx.load(program.save(tmp_path / "program.json")).bind(other)
    assert_as_accurate(other, inputs, [run(*inputs)])
