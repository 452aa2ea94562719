"""Stand-ins for `torch.cuda`."""

import pytest

from tests import cuda_stand_in


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Stream:
    """The default stream of a stand-in for `torch.cuda`."""
    return cuda_stand_in.install(monkeypatch)
