"""Kernels are operators: one for each kernel, with a short name and its text."""

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor

from nimble_fx.rewrites import kernel_registry
from nimble_fx.rewrites.kernel_registry import MAX_NAME, kernel_source, registered, short_name


def adding(n: int) -> Any:
    """The operator that adds a number."""

    def add(x: Tensor) -> Tensor:
        return x + n

    identity = ("test_kernel_registry", n)
    return registered("adds", identity, "(Tensor x) -> Tensor", add, torch.empty_like, f"+ {n}")


def test_a_kernel_is_registered_once_and_its_text_is_kept() -> None:
    one, same, other = adding(1), adding(1), adding(2)
    assert one is same
    assert one is not other
    for operator, text in ((one, "+ 1"), (other, "+ 2")):
        assert kernel_source(operator.__name__.removesuffix(".default")) == text
    assert kernel_source("no kernel") is None


def test_kernels_whose_digests_begin_alike_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Digest:
        def __init__(self, text: bytes) -> None:
            self._text = text

        def hexdigest(self) -> str:
            return "a" * 40 + real(self._text).hexdigest()

    real, x = hashlib.sha256, torch.randn(2, 3)
    monkeypatch.setattr(f"{kernel_registry.__name__}.sha256", Digest)
    for n in (1, 2, 1):
        assert torch.equal(adding(n)(x), x + n)


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("cpp_fused_relu_0", "cpp_fused_relu_0"),
        ("a" * MAX_NAME, "a" * MAX_NAME),
        ("a" * 99, "a" * MAX_NAME),
        ("add_" * 99 + "kernel", ("add_" * 99)[:MAX_NAME]),
        (
            "cpp_fused__native_batch_norm_legit_no_training_relu_12",
            "cpp_fused__native_batch_norm_leg_12",
        ),
    ],
)
def test_long_names_are_cut_and_keep_their_number(kernel: str, short: str) -> None:
    assert short_name(kernel) == short
    assert len(short) <= MAX_NAME + len("_12")
