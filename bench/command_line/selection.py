"""The options that select models, batch sizes, policies and a device."""

import argparse
from collections.abc import Sequence

import torch

from bench.command_line.record import default_device, parser
from bench.models.model import Form, Model
from bench.models.registry import ZOO, UnknownModelError, find
from bench.policies import POLICIES, UnknownPolicyError, find_policy

Chosen = tuple[Model, Form, int]
"""A model, one of its forms, and a batch size."""


def selecting_parser(
    description: str | None, models: Sequence[str], policies: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command's parser, with the options that select what to measure.

    Args:
        description: the command's description.
        models: the default models.
        policies: the default policies; None for a command without this option.
    """
    made = parser(description)
    named = "names as `python -m bench.models` lists them, or torchvision:NAME, timm:NAME, "
    made.add_argument(
        "--models", nargs="+", default=list(models), type=_model_name, metavar="NAME",
        help=f"{named}transformers:NAME",
    )  # fmt: skip
    made.add_argument(
        "--batch", type=at_least_one, nargs="+", help="batch sizes; each model's own if none"
    )
    if policies:
        made.add_argument(
            "--policies", nargs="+", type=_policy_name, default=list(policies), metavar="NAME",
            help=f"schedules by nimble_fx: {', '.join(POLICIES)}, or your own as module:Class",
        )  # fmt: skip
    made.add_argument("--device", type=_device, default=str(default_device()), help="cpu or cuda:N")
    return made


def chosen(args: argparse.Namespace, training: bool) -> list[Chosen]:
    """Each selected model, in each of its forms, at each batch size.

    Raises:
        SystemExit: there is none; prints an error.
    """
    cases = [
        (model, form, batch)
        for model in map(find, dict.fromkeys(args.models))
        for form in (model.training if training else (model.inference,))
        for batch in dict.fromkeys(args.batch or form.batches)
    ]
    if not cases:
        raise SystemExit(f"There is nothing to measure: no training of {' '.join(args.models)}.")
    return cases


def zoo() -> list[str]:
    """The names of all models in `bench/models/`."""
    return list(ZOO)


def _model_name(text: str) -> str:
    try:
        return find(text).name
    except UnknownModelError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _policy_name(text: str) -> str:
    try:
        find_policy(text)
    except UnknownPolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _device(text: str) -> str:
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"there is no device {text!r}: {reason}") from error
    return str(device)


def at_least_one(text: str) -> int:
    """Parses a positive integer from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)
