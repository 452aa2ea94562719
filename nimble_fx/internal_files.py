"""Which files are not the user's: PyTorch's, this package's, Python's own."""

import sysconfig
from pathlib import Path

import torch

_PYTHONS = sysconfig.get_path("stdlib")
_PACKAGES = [Path(package).parent for package in (torch.__file__, __file__)]


def is_internal(file: str) -> bool:
    """Whether code is PyTorch's, this package's, Python's own, or was made by one of these.

    Args:
        file: the file name of a frame or a code object.
    """
    return file.startswith(("<eval_with_key>", "<string>", "<nimble_fx ")) or is_installed(file)


def is_installed(file: str) -> bool:
    """Whether code is PyTorch's, this package's or Python's own, and not made by one of these."""
    path = Path(file)
    is_pythons = path.is_relative_to(_PYTHONS) and "site-packages" not in path.parts
    return is_pythons or any(map(path.is_relative_to, _PACKAGES))
