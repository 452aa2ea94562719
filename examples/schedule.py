"""Compiles a model with four branches and prints its schedule and the module that runs."""

import torch
from torch import Tensor, nn

import nimble_fx


class Branches(nn.Module):
    """Four branches of one input, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(branch(x)) for branch in self.branches], dim=1)


def main() -> None:
    """Compiles, checks the result, prints."""
    model, x = Branches().eval(), torch.randn(8, 64)
    compiled = torch.compile(model, backend="nimble", options={"policy": "nimble"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    program = nimble_fx.programs()[-1]
    print(program.summary())
    print(program.source)


if __name__ == "__main__":
    main()
