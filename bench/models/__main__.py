"""Lists the models that can be measured: names, parameters and inputs."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from bench.command_line.console import print_table
from bench.models.model import Form, Model
from bench.models.packages import count
from bench.models.registry import ZOO, UnknownModelError, find
from nimble_fx.ir.types import dtype_name


def described(model: Model) -> dict[str, Any]:
    """A model as plain data; its parameters are counted, not taken from the paper."""
    return {
        "name": model.name,
        "title": model.title,
        "source": model.source,
        "parameters": count(model.inference.build),
        "inference": _forms(model.inference),
        "training": [each for form in model.training for each in _forms(form)],
    }


def _forms(form: Form) -> list[dict[str, Any]]:
    """What a call takes at each batch size."""
    with torch.device("meta"):
        return [
            {
                "form": form.title,
                "batch": batch,
                "inputs": [f"{dtype_name(x.dtype)}{list(x.shape)}" for x in form.inputs(batch)],
            }
            for batch in form.batches
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints; 0, or 2 if there is no such model."""
    options = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__)
    options.add_argument("models", nargs="*", help="names; all of this directory if none")
    options.add_argument("--json", action="store_true", help="print JSON")
    args = options.parse_args(argv)
    try:
        models = [described(find(name)) for name in args.models or ZOO]
    except UnknownModelError as error:
        options.error(str(error))
    if args.json:
        print(json.dumps(models, indent=1))
        return 0
    rows = [
        [
            m["name"],
            f"{m['parameters']:,}",
            *(_first(m[form]) for form in ("inference", "training")),
        ]
        for m in models
    ]
    print_table("models", ["", "parameters", "inference", "training"], [rows])
    return 0


def _first(forms: Sequence[dict[str, Any]]) -> str:
    return " ".join(forms[0]["inputs"]) if forms else "-"


if __name__ == "__main__":
    sys.exit(main())
