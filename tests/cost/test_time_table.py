"""A table on disk returns what was written, loses nothing, and a broken file is an error."""

import json
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.cost.time_table import MeasuredTime, MeasuredTimes, TimeTable, environment
from nimble_fx.cost.work import Work
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import FileError

amounts = st.floats(0, 1e30) | st.integers(0, 2**62)
timed = st.builds(
    MeasuredTime,
    operator=st.text(),
    us=st.floats(min_value=1e-9, max_value=1e12),
    work=st.builds(
        Work,
        flops=amounts,
        nbytes=amounts,
        n_elements=amounts,
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.bool]),
        is_product=st.booleans(),
        is_convolution=st.booleans(),
        n_channels=st.integers(0, 4096),
        n_conversions=st.integers(0, 2),
        is_depthwise=st.booleans(),
    ),
)
ONE = MeasuredTime("aten.mm.default", 2.5, Work(6, 5, 4, torch.float32, True, False))


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), timed, max_size=4))
def test_what_is_written_is_read(times: MeasuredTimes) -> None:
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        written = TimeTable.of(directory, Cpu()).with_more(times)
        assert TimeTable.of(directory, Cpu()) == written
        assert written.times == times


def test_a_new_time_takes_the_place_of_an_old_one_and_leaves_others(tmp_path: Path) -> None:
    newer = MeasuredTime(ONE.operator, 3.5, ONE.work)
    TimeTable.of(tmp_path, Cpu()).with_more({"a": ONE, "b": ONE}).with_more({"a": newer})
    assert TimeTable.of(tmp_path, Cpu()).times == {"a": newer, "b": ONE}


def test_no_new_times_make_no_file(tmp_path: Path) -> None:
    assert TimeTable.of(tmp_path / "new", Cpu()).with_more({}).times == {}
    assert not (tmp_path / "new").exists()


def add(directory: Path, i: int) -> None:
    for j in range(5):
        TimeTable.of(directory, Cpu()).with_more({f"{i} {j}": ONE})


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_who_writes_at_the_same_time_loses_nothing(tmp_path: Path, how: str) -> None:
    if how == "threads":
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: add(tmp_path, i), range(4)))
    else:
        workers = [get_context("fork").Process(target=add, args=(tmp_path, i)) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert set(TimeTable.of(tmp_path, Cpu()).times) == {
        f"{i} {j}" for i in range(4) for j in range(5)
    }
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".lock"}


def row(**changes: object) -> dict[str, object]:
    work = {
        "flops": 1, "nbytes": 1, "n_elements": 1, "dtype": "torch.float32",
        "is_product": True, "is_convolution": False, "n_channels": 0, "n_conversions": 0,
    }  # fmt: skip
    plain: dict[str, object] = {"operator": "aten.mm.default", "us": 1.0, "work": work}
    for name, value in changes.items():
        (work if name in work else plain)[name] = value
    return plain


def test_a_sound_row_is_taken(tmp_path: Path) -> None:
    table = TimeTable.of(tmp_path, Cpu())
    table.path.write_text(json.dumps({"a": row()}))
    assert TimeTable.of(tmp_path, Cpu()).times["a"].us == 1.0


BROKEN = [
    *("", "{", "[]", "3", '{"a": 1}', '{"a": {}}', "[" * 100_000, '{"a": {"us": 1}}'),
    *(
        json.dumps({"a": row(**changes)})
        for changes in (
            {"us": 0}, {"us": -1}, {"us": "fast"}, {"us": float("nan")}, {"us": float("inf")},
            {"us": 1e-300}, {"us": 1e300}, {"flops": 1e300}, {"nbytes": 10**400},
            {"us": True}, {"dtype": "torch.nn"}, {"dtype": "torch.no_such"}, {"dtype": 3},
            {"operator": 7}, {"flops": -1}, {"flops": None}, {"nbytes": True}, {"is_product": 1},
            {"n_channels": "many"}, {"n_conversions": -1}, {"more": 1},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_named_and_not_written_over(tmp_path: Path, text: str) -> None:
    table = TimeTable.of(tmp_path, Cpu())
    table.path.write_text(text)
    for use in (lambda: TimeTable.of(tmp_path, Cpu()), lambda: table.with_more({"b": ONE})):
        with pytest.raises(FileError, match=r"not a table of measured times.*delete it") as caught:
            use()
        assert str(table.path) in str(caught.value)
    assert table.path.read_text() == text


def test_what_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileError, match="cannot be read"):
        TimeTable.of(file, Cpu())
    with pytest.raises(FileError, match="cannot be written"):
        TimeTable(file / "times.json", {}).with_more({"a": ONE})


def test_other_hardware_threads_and_versions_have_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpu(Cpu):
        hardware = "NVIDIA X"

    texts = [environment(Cpu()), environment(Gpu())]
    for name, value in (("get_num_threads", lambda: 77), ("__version__", "9.9")):
        monkeypatch.setattr(torch, name, value)
        texts.append(environment(Cpu()))
    monkeypatch.setattr(torch.version, "cuda", "99.9")
    texts.append(environment(Cpu()))
    assert len(set(texts)) == len(texts)
    assert TimeTable.of(tmp_path, Cpu()).path != TimeTable.of(tmp_path, Gpu()).path
