"""Training and inference over two processes, each step compared with eager."""

from pathlib import Path
from time import monotonic

import pytest
from torch.multiprocessing.spawn import spawn

from tests.support.ranks import SCENARIOS, WORLD, work

pytestmark = pytest.mark.slow

TIMEOUT_S = 300


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what each rank has to say of each scenario; all run in one pair."""
    directory = tmp_path_factory.mktemp("ranks")
    context = spawn(work, (str(directory),), WORLD, join=False)
    try:
        end = monotonic() + TIMEOUT_S
        while not context.join(end - monotonic()):  # which returns whenever one is done
            assert monotonic() < end, f"two processes take longer than {TIMEOUT_S} s"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return directory


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_compute_what_eager_does(name: str, reports: Path) -> None:
    for rank in range(WORLD):
        assert (reports / f"{name}.{rank}").read_text() == ""
