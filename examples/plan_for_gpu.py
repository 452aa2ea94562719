"""Plans a model for an H100 on any machine, and asks what two changes would gain; all simulated."""

import torch
from torch import Tensor, nn

import nimble_fx


class Inception(nn.Module):
    """Three branches of convolutions, concatenated: (N, 64, H, W) -> (N, 96, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(64, 32, size, padding=size // 2) for size in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(branch(x)) for branch in self.branches], dim=1)


def main() -> None:
    """Prints the candidate schedules, the timeline of the best, and two predictions."""
    with torch.device("meta"):  # neither the model nor its input needs data
        program = nimble_fx.plan(Inception().eval(), torch.empty(1, 64, 28, 28), device="h100")
    print(program.summary())
    run = nimble_fx.whatif(program)
    print(run.predict().timeline)
    print("in 16 bits:", run.mixed_precision().predict())
    print("on an L4:", run.on("l4").predict())


if __name__ == "__main__":
    main()
