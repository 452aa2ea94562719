"""What the CUDA device reads of PyTorch's settings and of the GPU, without a GPU."""

from types import SimpleNamespace

import pytest
import torch

from nimble_fx.devices.cuda import Cuda
from nimble_fx.devices.specs import DEVICES


def test_other_allocators_cannot_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Cuda(torch.device("cuda", 0))
    for backend, reason in (("native", None), ("cudaMallocAsync", "cudaMallocAsync, not native")):
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda name=backend: name)
        assert (device.why_not_capture is None) == (reason is None)
        assert (reason or "None") in str(device.why_not_capture)


def test_a_device_is_there_if_there_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert Cuda(torch.device("cuda", 0)).hardware == "GPU 0"
    assert Cuda(torch.device("cuda", 1)).hardware is None


def test_its_specifications_are_those_of_its_own_model_and_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a100 = DEVICES["a100"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device=None: SimpleNamespace(multi_processor_count=a100.sms // (device.index + 1)),
    )
    whole, half = (Cuda(torch.device("cuda", i)).specs for i in range(2))
    assert (whole.sms, whole.gbps) == (a100.sms, a100.gbps)
    assert (half.sms, half.gbps) == (a100.sms // 2, a100.gbps / 2)


def test_a_pytorch_that_cannot_limit_workspaces_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.backends.cuda, "cublas_workspace_size", raising=False)
    with Cuda(torch.device("cuda", 0)).limited_workspaces(1):
        assert not hasattr(torch.backends.cuda, "cublas_workspace_size")


def test_all_programs_of_a_device_share_its_streams_and_all_devices_a_lock() -> None:
    one, other = (torch.device("cuda", i) for i in (7, 8))
    assert Cuda.get(one) is Cuda.get(torch.device("cuda", 7))
    assert Cuda.get(one) is not Cuda.get(other)
    assert Cuda.get(one).exclusive() is Cuda.get(other).exclusive()
