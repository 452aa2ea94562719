"""Saves a compiled program as JSON, and runs it again without tracing the model."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import nimble_fx


def main() -> None:
    """Saves, loads, binds the parameters, and compares the results."""
    model, x = (
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval(),
        torch.randn(2, 16),
    )
    compiled = nimble_fx.compile(model, x)
    with TemporaryDirectory() as directory:
        path = compiled.programs[0].save(Path(directory) / "model.json")
        print(f"{path.name}: {path.stat().st_size} bytes")
        program = nimble_fx.load(path)  # proved again; nothing in the file is run
    run = program.bind(model)
    (y,) = run(x)
    torch.testing.assert_close(y, model(x).detach())
    print(f"{program.name} computes what the model computes")


if __name__ == "__main__":
    main()
