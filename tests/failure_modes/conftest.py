"""Stand-ins for `torch.cuda`."""

import pytest

from tests import cuda_stand_in


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Gpu:
    """Every program runs on a CUDA device, on a stand-in for `torch.cuda`."""
    return cuda_stand_in.install(monkeypatch)
