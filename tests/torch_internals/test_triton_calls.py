"""Which launches of Triton kernels are one operator; kernels here are functions of CPU tensors."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from nimble_fx.torch_internals.operators import KERNELS
from tests.support.triton_stubs import Kernel, operator_of, scale


class OfText(Kernel):
    """A kernel of which Triton knows all that it depends on."""

    def __init__(self, text: str, value: object = 1) -> None:
        super().__init__(scale.function, scale.arg_names)
        self.cache_key = text
        self.used_global_vals: dict[Any, Any] = {("name", id(value)): (value, {})}


class Tuned(Kernel):
    """What `triton.autotune` makes of a kernel."""

    def __init__(self, kernel: Kernel, hook: object = None, **configuration: int) -> None:
        super().__init__(scale.function, scale.arg_names)
        options = SimpleNamespace(all_kwargs=lambda: configuration, pre_hook=hook)
        self.fn, self.configs, self.keys = kernel, [options], ["n"]
        self.reset_to_zero: list[str] = []
        self.restore_value: list[str] = []
        self.user_defined_pre_hook = self.user_defined_post_hook = False
        self.perf_model = self.early_config_prune = None


MAKE: dict[str, Callable[[], Kernel]] = {
    "one": lambda: OfText("one"),
    "other": lambda: OfText("other"),
    "one with another constant": lambda: OfText("one", 2),
    "with 4 warps": lambda: Tuned(OfText("one"), num_warps=4),
    "with 8 warps": lambda: Tuned(OfText("one"), num_warps=8),
    "other with 4 warps": lambda: Tuned(OfText("other"), num_warps=4),
}


def test_what_has_the_same_effect_is_one_operator_in_each_compile_and_process() -> None:
    first, second = ([operator_of(make()) for make in MAKE.values()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(MAKE)


def test_tuners_that_call_functions_are_different_operators() -> None:
    made = [operator_of(Tuned(OfText("one"), hook=print, num_warps=4)) for _ in range(2)]
    assert len({*made, operator_of(Tuned(OfText("one"), num_warps=4))}) == 3


def test_constants_are_compared_by_their_values_or_else_as_objects() -> None:
    kernel = OfText("one")
    equal = [operator_of(kernel, (2, [torch.float32, None])) for _ in range(2)]
    different = [operator_of(kernel, each) for each in (2, 2.0, "2", True, (2, [torch.int8, None]))]
    objects = [operator_of(kernel, object()) for _ in range(2)]
    assert len({*equal, *different, *objects}) == 1 + 5 + 2


def test_a_name_that_no_operator_may_have_is_replaced() -> None:
    kernel = Kernel(scale.function, scale.arg_names)
    kernel.fn = SimpleNamespace(__name__="größe", src="")
    assert f"{KERNELS}.kernel_" in str(operator_of(kernel))
