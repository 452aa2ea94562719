"""Which files are internal, and which are the user's."""

import functools
import sysconfig
from pathlib import Path

import pytest
import torch

import nimble_fx
from nimble_fx.internal_files import is_internal

PYTORCH = Path(torch.__file__).parent
INTERNAL = [
    torch.nn.functional.__file__,
    nimble_fx.__file__,
    functools.__file__,
    "<string>",
    "<eval_with_key>.7",
    "<nimble_fx Net.forward_1.py>",
]
USERS = [
    __file__,
    str(PYTORCH.parent / "torchvision" / "models" / "resnet.py"),
    str(PYTORCH.parent / "torch_geometric" / "nn.py"),
    str(Path(sysconfig.get_path("stdlib")) / "site-packages" / "timm" / "layers.py"),
    "<ipython-input-1-0>",
]


@pytest.mark.parametrize("file", INTERNAL)
def test_pytorchs_ours_and_pythons_is_internal(file: str) -> None:
    assert is_internal(file)


@pytest.mark.parametrize("file", USERS)
def test_all_else_is_the_users(file: str) -> None:
    assert not is_internal(file)
