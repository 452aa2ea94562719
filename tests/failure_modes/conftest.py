"""Stand-ins for `torch.cuda`."""

import pytest

from tests.support import cuda_stand_in


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Gpu:
    """Every program runs on a CUDA device, on a stand-in for `torch.cuda`.

    On the streams that simulation says are best: a trial of several schedules could end with one.
    """
    gpu = cuda_stand_in.install(monkeypatch)
    monkeypatch.setattr(gpu.cuda, "can_time", False)
    return gpu
