"""Specifications of devices for cost models, from data sheets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import pairwise

from nimble_fx.errors import OptionError

MAX_FIGURE = 1e12
"""The largest valid figure of a device."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The specifications of a device to plan for, which this machine need not have.

    Attributes:
        sms: processors: streaming multiprocessors, or cores of a CPU.
        tflops: 10^12 operations a second in float32, without tensor cores.
        gbps: memory bandwidth, 10^9 bytes a second.
        tf32_tflops: convolutions in float32, for which PyTorch allows TF32; None: `tflops`.
        half_tflops: float16 and bfloat16, dense; None: `tflops`.
        double_tflops: float64; None: half of `tflops`.
        name: its name.
        max_streams: the number of queues that run at the same time.
        kernel_us: the least time of a kernel that follows another: its launch by the device and its
            tail.
        launch_us: the time of the host to call an operator, for programs that are not frozen.
        event_us: the delay of a wait for a task of another stream.
        workspace_nbytes: the bytes that libraries take for each stream with matrix products.

    Raises:
        OptionError: a figure is not a number above 0 (the last three may be 0), or the name has
            characters that are not allowed.
    """

    sms: int
    tflops: float
    gbps: float
    tf32_tflops: float | None = None
    half_tflops: float | None = None
    double_tflops: float | None = None
    name: str = "a device"
    max_streams: int = 32
    kernel_us: float = 3.0
    launch_us: float = 5.0
    event_us: float = 0.3
    workspace_nbytes: int = (8 << 20) + (128 << 10)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name" or (value is None and field.default is None):
                continue
            kinds = (int,) if field.type is int else (int, float)
            least = 1 if kinds == (int,) else 1e-9
            if field.name in ("launch_us", "event_us", "workspace_nbytes"):
                least = 0
            if type(value) not in kinds or not least <= value <= MAX_FIGURE:
                number = "a whole number" if kinds == (int,) else "a number"
                raise OptionError(
                    f"Device({field.name}={value!r:.99}) is not valid; it takes {number} from "
                    f"{least:g} to {MAX_FIGURE:g}"
                )
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w .,:+()/-]{1,99}", self.name):
            raise OptionError(
                f"Device(name={self.name!r:.99}) is not valid; it takes letters, digits, spaces "
                "and . , : + ( ) / -"
            )


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(name="v100", sms=80, tflops=15.7, half_tflops=125, double_tflops=7.8, gbps=900),
        Device(
            name="a100", sms=108, tflops=19.5, tf32_tflops=156, half_tflops=312,
            double_tflops=9.7, gbps=2039,
        ),
        Device(
            name="h100", sms=132, tflops=67, tf32_tflops=494.5, half_tflops=989.5,
            double_tflops=34, gbps=3350, workspace_nbytes=32 << 20,
        ),
        Device(
            name="h200", sms=132, tflops=67, tf32_tflops=494.5, half_tflops=989.5,
            double_tflops=34, gbps=4800, workspace_nbytes=32 << 20,
        ),
        Device(
            name="b200", sms=148, tflops=75, tf32_tflops=1125, half_tflops=2250,
            double_tflops=37, gbps=7700, workspace_nbytes=32 << 20,
        ),
        Device(
            name="l4", sms=58, tflops=30.3, tf32_tflops=60, half_tflops=121,
            double_tflops=0.49, gbps=300,
        ),
        Device(
            name="rtx4090", sms=128, tflops=82.6, tf32_tflops=82.6, half_tflops=165.2,
            double_tflops=1.29, gbps=1008,
        ),
        Device(
            name="cpu", sms=2, tflops=0.24, gbps=60, max_streams=1, kernel_us=3.0,
            launch_us=0.0, event_us=0.0, workspace_nbytes=0,
        ),
    )
}  # fmt: skip
"""Named devices. The figures are the vendors', dense, of the SXM form where there are several;
"cpu" is two cores of a server, which run one task after another. Workspaces are what PyTorch lets
cuBLAS have (aten/src/ATen/cuda/CublasHandlePool.cpp of 2.13)."""

GPUS = tuple(name for name in DEVICES if name != "cpu")
"""The names of the devices that run several streams at a time."""

_SCALED = ("tflops", "gbps", "tf32_tflops", "half_tflops", "double_tflops")
"""The figures that grow with the number of processors."""

DEFAULT_GPU = "h100"
"""The GPU that is assumed if none is named."""


def gpu(hardware: str, n_sms: int) -> Device:
    """The specifications of a GPU, by its driver's name and number of processors.

    A named GPU with another number of processors (PCIe, a laptop, a MIG slice) is scaled by that
    number; a GPU that is not in `DEVICES` is a scaled A100.
    """
    listed = find_hardware(hardware)
    if listed is not None and listed.sms == n_sms:
        return listed
    like = listed or DEVICES["a100"]
    part = n_sms / like.sms
    figures = {field: getattr(like, field) for field in _SCALED}
    scaled = {field: figure and figure * part for field, figure in figures.items()}
    name = re.sub(r"[^\w .,:+()/-]", " ", hardware)[:99] or "a GPU"
    return replace(like, name=name, sms=n_sms, **scaled)


def find_device(device: str | Device, among: Sequence[str] = tuple(DEVICES)) -> Device:
    """The device with a name of `DEVICES`; a `Device` is returned as it is.

    Args:
        device: a name or a `Device`.
        among: the names that are allowed.

    Raises:
        OptionError: the name is not allowed; the message lists the allowed names.
    """
    if isinstance(device, Device):
        return device
    name = str(device).lower()
    if name in among:
        return DEVICES[name]
    near = get_close_matches(name, among, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise OptionError(
        f"device={device!r} is not known; {hint}known devices: {', '.join(among)}, or describe "
        "one: Device(sms=..., tflops=..., gbps=...)"
    )


def find_hardware(hardware: str) -> Device | None:
    """The named GPU in a driver's name, such as "NVIDIA H100 80GB HBM3"; None if there is none."""
    words = re.split(r"[^a-z0-9]+", hardware.lower())
    pairs = [first + second for first, second in pairwise(words)]
    named = (word for word in (*words, *pairs) if word in GPUS)
    return next((DEVICES[word] for word in named), None)
