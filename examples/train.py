"""Trains a small model with a parallel forward and backward, as captured on the virtual device."""

import torch
from torch import Tensor, nn

import nimble_fx


class TwoTowers(nn.Module):
    """Two towers and the product of what they say: (batch, 8) and (batch, 8) -> (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.right = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.left(left) * self.right(right)).sum(1)


def main() -> None:
    """Trains for a few steps and prints the loss."""
    torch.manual_seed(0)
    model = TwoTowers()
    # On a GPU leave the options out: there the program is captured in a CUDA graph as it is.
    compiled = torch.compile(model, backend="nimble", options={"device": "virtual"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left, right = torch.randn(32, 8), torch.randn(32, 8)
    target = (left * right).sum(1)
    for step in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(left, right), target)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    for program in nimble_fx.programs():
        print(program.summary())


if __name__ == "__main__":
    main()
