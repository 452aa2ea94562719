"""Devices are described as in their data sheets; unknown ones are refused with advice."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch._inductor.analysis.device_info import _device_mapping

from nimble_fx.devices.specs import DEVICES, Device, find_device, find_hardware, gpu
from nimble_fx.errors import OptionError


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_figures_are_those_that_pytorch_knows(name: str) -> None:
    theirs = _device_mapping.get(f"NVIDIA {name.upper()}")
    factor = getattr(theirs, "tops_sparsity_factor", None)
    if theirs is None or factor is None:
        pytest.skip("this version of torch does not know it, or has an H100 with an A100's TF32")
    device = DEVICES[name]
    assert device.tflops == theirs.tops[torch.float32]
    assert device.gbps == theirs.dram_bw_gbs
    assert device.tf32_tflops == pytest.approx(theirs.tops["torch.tf32"] / factor, rel=0.01)
    assert device.half_tflops == pytest.approx(theirs.tops[torch.float16] / factor, rel=0.01)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_found_by_its_name_and_is_its_own(name: str) -> None:
    assert find_device(name) is find_device(DEVICES[name]) is DEVICES[name]
    assert DEVICES[name].name == name


@pytest.mark.parametrize(("name", "meant"), [("h10", "h100"), ("rtx490", "rtx4090")])
def test_an_unknown_device_is_refused_with_the_known_ones_and_a_near_name(
    name: str, meant: str
) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{meant}'") as caught:
        find_device(name)
    assert all(known in str(caught.value) for known in DEVICES)


@pytest.mark.parametrize("name", ["", "a toaster", None, 3])
def test_what_is_near_nothing_is_refused_without_a_guess(name: Any) -> None:
    with pytest.raises(OptionError, match="known devices") as caught:
        find_device(name)
    assert "mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_a_device_is_found_by_what_its_driver_calls_it(hardware: str, name: str) -> None:
    assert find_hardware(hardware) is DEVICES[name]


@pytest.mark.parametrize("hardware", ["NVIDIA L40S", "NVIDIA H1000", "virtual", ""])
def test_hardware_that_is_not_listed_is_not_found(hardware: str) -> None:
    assert find_hardware(hardware) is None


def test_a_gpu_that_is_not_listed_is_taken_for_so_many_processors_of_an_a100() -> None:
    half = gpu("NVIDIA A50", 54)
    assert (half.name, half.sms) == ("NVIDIA A50", 54)
    assert half.tflops == DEVICES["a100"].tflops / 2
    assert half.gbps == DEVICES["a100"].gbps / 2


def test_a_listed_gpu_with_fewer_processors_has_its_part_of_the_figures() -> None:
    assert gpu("NVIDIA H100 80GB HBM3", 132) is DEVICES["h100"]
    part = gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 33)
    assert (part.sms, part.tflops, part.gbps) == (33, 67 / 4, 3350 / 4)
    assert part.half_tflops == 989.5 / 4


@pytest.mark.parametrize("name", ['x"""', "C:\\users", "a\nb", "", None, 3, "x" * 100])
def test_a_name_that_cannot_stand_in_a_line_of_text_is_refused(name: Any) -> None:
    with pytest.raises(OptionError, match="it takes letters"):
        Device(sms=1, tflops=1, gbps=1, name=name)


NUMBERS = [field.name for field in fields(Device) if field.name != "name"]
MAY_BE_0 = ("launch_us", "event_us", "workspace_nbytes")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "fast", True])
def test_a_figure_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"Device\({name}="):
        replace(DEVICES["a100"], **{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_none_and_zero_are_taken_where_they_mean_something(name: str) -> None:
    for value, taken in ((None, name.endswith("_tflops")), (0, name in MAY_BE_0)):
        changes: dict[str, Any] = {name: value}
        if taken:
            assert getattr(replace(DEVICES["a100"], **changes), name) == value
        else:
            with pytest.raises(OptionError):
                replace(DEVICES["a100"], **changes)
