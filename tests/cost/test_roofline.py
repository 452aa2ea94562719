"""A roofline's time is never below what data sheets allow, and grows with the work."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nimble_fx.cost.roofline import (
    BANDWIDTH_PER_SM,
    ELEMENTS_PER_BLOCK,
    MIN_TF32_CHANNELS,
    Roofline,
    roofline,
)
from nimble_fx.cost.work import Work
from nimble_fx.devices.specs import DEVICES, Device
from nimble_fx.errors import UnsupportedError
from tests.support.cost_graphs import aten, one_task, tensor_type, traced
from tests.support.models import Branchy

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64]


@st.composite
def works(draw: st.DrawFn) -> Work:
    """What tasks do, from nothing to a large matrix product or convolution."""
    kind = draw(st.sampled_from(["pointwise", "product", "convolution"]))
    n_elements = draw(st.integers(0, 10**8))
    n_channels = draw(st.integers(1, 2048)) if kind == "convolution" else 0
    return Work(
        flops=n_elements * (1 if kind == "pointwise" else draw(st.integers(1, 10**5))),
        nbytes=n_elements * draw(st.integers(1, 16)),
        n_elements=n_elements,
        dtype=draw(st.sampled_from(DTYPES)),
        is_product=kind != "pointwise",
        is_convolution=kind == "convolution",
        n_channels=n_channels,
        n_conversions=draw(st.integers(0, 2)) if kind == "convolution" else 0,
        is_depthwise=n_channels == 1 and draw(st.booleans()),
    )


devices = st.sampled_from(list(DEVICES.values()))


def peak(device: Device) -> float:
    """The most operations a second in any type, 10^12."""
    figures = (device.tflops, device.tf32_tflops, device.half_tflops, device.double_tflops)
    return max(each for each in figures if each is not None)


@given(works(), devices)
def test_nothing_is_faster_than_the_data_sheet(work: Work, device: Device) -> None:
    cost = roofline(work, device)
    assert cost.us >= device.kernel_us
    assert cost.us >= work.flops / (1e6 * peak(device))
    assert cost.us >= work.nbytes / (1e3 * device.gbps)
    assert (cost.flops, cost.nbytes, cost.origin) == (work.flops, work.nbytes, "roofline")


@given(devices, st.integers(1, 8))
def test_few_blocks_use_the_bandwidth_of_few_processors(device: Device, n_blocks: int) -> None:
    """Such as a sum of many elements to few."""
    nbytes, n_elements = 10**9, n_blocks * ELEMENTS_PER_BLOCK
    few = Work(nbytes, nbytes, n_elements, torch.float32, is_product=False, is_convolution=False)
    gbps = min(1, BANDWIDTH_PER_SM * n_blocks / device.sms) * device.gbps
    assert roofline(few, device).us >= nbytes / (1e3 * gbps)


@given(works(), devices)
def test_shares_are_parts(work: Work, device: Device) -> None:
    cost = roofline(work, device)
    assert 0 < cost.share <= 1
    assert 0 <= cost.bandwidth <= 1


@given(works(), devices, st.integers(2, 100))
def test_more_operations_or_bytes_never_take_less(work: Work, device: Device, times: int) -> None:
    assume(not work.is_product or work.is_convolution)  # a longer sum may be split among blocks
    before = roofline(work, device).us
    assert roofline(replace(work, flops=work.flops * times), device).us >= before
    assert roofline(replace(work, nbytes=work.nbytes * times), device).us >= before


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 512), devices)
def test_a_batch_twice_as_large_takes_at_least_as_long(
    rows: int, columns: int, depth: int, device: Device
) -> None:
    def us(n: int) -> float:
        made = tensor_type(n * rows, columns)
        graph = one_task(
            aten.mm.default, made, tensor_type(n * rows, depth), tensor_type(depth, columns)
        )
        return Roofline(device)(graph)["task"].us

    assert us(2) >= us(1) * (1 - 1e-9)


@given(st.integers(1, 10**6), st.integers(1, 600), devices)
def test_more_elements_of_a_pointwise_kernel_never_take_less(
    n: int, more: int, device: Device
) -> None:
    def us(n: int) -> float:
        graph = one_task(aten.relu.default, tensor_type(n), tensor_type(n))
        return Roofline(device)(graph)["task"].us

    assert us(n + more) >= us(n) * (1 - 1e-9)


@given(works(), st.sampled_from([name for name in DEVICES if name != "cpu"]))
def test_a_device_with_twice_of_all_never_takes_longer(work: Work, name: str) -> None:
    device = DEVICES[name]
    doubled = {
        field: 2 * value
        for field in ("sms", "tflops", "gbps", "tf32_tflops", "half_tflops", "double_tflops")
        if (value := getattr(device, field)) is not None
    }
    assert roofline(work, replace(device, **doubled)).us <= roofline(work, device).us * (1 + 1e-9)


def test_a_large_product_nears_the_peak_and_a_small_one_does_not() -> None:
    device = DEVICES["a100"]
    for n, reached in ((8192, True), (64, False)):
        work = Work(2 * n**3, 12 * n**2, n**2, torch.float32, is_product=True, is_convolution=False)
        cost = roofline(work, device)
        assert (work.flops / (1e6 * cost.us) > 0.5 * device.tflops) == reached
        assert (cost.share == 1) == reached


@given(works(), devices, st.integers(0, 2))
def test_each_conversion_to_channels_last_is_a_kernel_on_tensor_cores_alone(
    work: Work, device: Device, n: int
) -> None:
    assume(work.is_convolution)
    longer = roofline(replace(work, n_conversions=n), device).us
    without = roofline(replace(work, n_conversions=0), device).us
    cores = device.tf32_tflops is not None and work.dtype not in DTYPES[1:4]
    n_kernels = n if cores and work.n_channels >= MIN_TF32_CHANNELS else 0
    assert longer - without == pytest.approx(n_kernels * device.kernel_us, abs=1e-6 * without)


def test_every_launching_task_of_a_model_has_a_cost_and_equal_tasks_the_same() -> None:
    graph = traced(Branchy(), torch.randn(2, 4))
    costs = Roofline(DEVICES["h100"])(graph)
    assert set(costs) == {task.name for task in graph.launching}
    assert costs["mm"] == costs["mm_1"]


def test_a_symbolic_size_must_be_known() -> None:
    graph = one_task(aten.relu.default, tensor_type("s0"), tensor_type("s0"))
    with pytest.raises(UnsupportedError, match="s0 has no value"):
        Roofline(DEVICES["h100"])(graph)
    few, many = (Roofline(DEVICES["h100"], {"s0": n})(graph)["task"].us for n in (10, 10**9))
    assert few < many


def test_an_allocation_costs_the_device_nothing_and_a_factory_only_writes() -> None:
    large, small = tensor_type(4096, 4096), tensor_type(2)
    empty = one_task(aten.new_empty.default, large, large, [4096, 4096])
    zeros = one_task(aten.new_zeros.default, small, large, [2])
    model = Roofline(DEVICES["h100"])
    assert model(empty)["task"].us == 0
    assert model(zeros)["task"].nbytes == 8
