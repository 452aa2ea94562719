"""What a text or a predicate selects, and the error if it selects nothing."""

from typing import Any

import pytest

from nimble_fx.errors import OptionError
from nimble_fx.simulation.discrete_event import Activity
from nimble_fx.what_if.select_activities import Limit, Select, selected

KERNELS = ("relu", "relu_1", "gemm<float*>", "gemm<half*>", "memory copy")
ACTIVITIES = [
    *(Activity(f"host {name}", "host", 1) for name in KERNELS),
    Activity("cudaMalloc #3", "host", 1),
    *(Activity(name, "s0", 1, engine="gpu") for name in KERNELS),
]
LIMITS: dict[str, Limit] = {"gemm<float*>": "compute", "gemm<half*>": "compute", "relu": "memory"}


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("compute", {"gemm<float*>", "gemm<half*>"}),
        ("memory", {"relu"}),
        ("relu", {"relu"}),
        ("relu*", {"relu", "relu_1"}),
        ("rel", {"relu", "relu_1"}),
        ("gemm<float*>", {"gemm<float*>"}),
        ("<half*", {"gemm<half*>"}),
        ("emory", {"memory copy"}),
        ("host relu", {"host relu"}),
        ("host", {f"host {name}" for name in KERNELS}),
        ("cudaM", {"cudaMalloc #3"}),
        (lambda activity: activity.queue == "host" and "lu" in activity.name,
         {"host relu", "host relu_1"}),
    ],
)  # fmt: skip
def test_the_first_reading_that_fits_is_meant_on_the_device_first(
    select: Select, names: set[str]
) -> None:
    assert selected(ACTIVITIES, select, LIMITS) == names


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("rleu", "did you mean 'relu'"),
        ("cudaMaloc", "did you mean 'cudaMalloc'"),
        ("", "there are 'host relu', 'host relu_1', 'host gemm<float[*]>', ..."),
        ("zzz", "there are 'host relu'"),
        (lambda activity: activity.us > 1, "holds for none of the 11 activities"),
        (3, "it takes a text, a list of texts, or a function"),
        (None, "it takes a text, a list of texts, or a function"),
    ],
)
def test_nothing_selected_is_an_error_that_names_what_is_near(select: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        selected(ACTIVITIES, select, LIMITS)


def test_a_hint_is_found_soon_among_many_names() -> None:
    """Names of a trace repeat, with numbers; all different ones are not compared."""
    many = [Activity(f"kernel_{i:06} #{k}", "s0", 1.0) for i in range(10_000) for k in (1, 2)]
    with pytest.raises(OptionError, match="did you mean 'kernel_000007'"):
        selected(many, "kernle_000007", {})
    with pytest.raises(OptionError, match="there are 'kernel_000000', 'kernel_000001', 'kern"):
        selected(many, "?" * 40, {})


def test_a_run_without_activities_has_none_to_name() -> None:
    with pytest.raises(OptionError, match=r"'\*' selects no activity; the run has none$"):
        selected([], "*", {})


def test_where_no_kernel_is_bound_so_it_is_said() -> None:
    with pytest.raises(OptionError, match="no kernel is memory-bound"):
        selected(ACTIVITIES, "memory", {})
