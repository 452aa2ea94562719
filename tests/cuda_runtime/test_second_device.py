"""Work on a second device is in the order of its streams, and it can be the current one."""

import ctypes

import pytest
import torch

from tests.cuda_runtime.cuda_libraries import driver

pytestmark = pytest.mark.gpu

N_ROUNDS = 5


@pytest.fixture
def second() -> torch.device:
    """A device that is not the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    return torch.device("cuda", 1)


def test_a_side_stream_sees_what_its_devices_default_stream_did(second: torch.device) -> None:
    for value in range(1, N_ROUNDS):
        x, seen = torch.zeros(2, device=second), torch.zeros(2, device=second)
        torch.cuda.synchronize(second)
        side = torch.cuda.Stream(second)
        x.fill_(value)
        side.wait_stream(torch.cuda.default_stream(second))
        with torch.cuda.stream(side):
            seen.copy_(x)
        side.synchronize()
        assert seen.tolist() == [value] * 2
    assert torch.cuda.current_device() == 0


def test_the_driver_has_the_current_device_of_the_runtime(second: torch.device) -> None:
    found = ctypes.c_int()
    for device in (second.index, 0):
        torch.cuda.set_device(device)
        assert driver.cuCtxGetDevice(ctypes.byref(found)) == 0
        assert found.value == device
