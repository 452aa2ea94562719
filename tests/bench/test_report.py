"""The report shows all results, and nothing else."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.command_line.record import RESULTS, write_json
from bench.report import BEGIN, END, ReportError, main, page, read, with_gains
from bench.tables.gains import FUSED, MANY_MODELS, NO_GAINS
from bench.tables.markdown import comparison
from bench.tables.rows import Result, Row

pytestmark = pytest.mark.slow

README = Path("README.md")


def document(gpus: list[str], rows: Sequence[Any], command: str = "inference") -> dict[str, Any]:
    environment = {
        "gpus": gpus,
        "torch": "2.11.0",
        "date": "2030-01-01",
        "commit": "abc",
        "modified": False,
        "python": "3.12",
        "processor": "x86_64",
        "n_cpus": 2,
        "n_torch_threads": 2,
        "load_average": 0.5,
    }
    return {
        "command": command,
        "options": {
            "models": ["m"],
            "batch": None,
            "no_compile": True,
            "rounds": 2,
            "device": "cuda:0" if gpus else "cpu",
            "name": command,
        },
        "environment": environment,
        "targets": [{"name": "a", "figure": 1.2, "limit": 1.0, "met": False}],
        "results": {"rows": rows, "not_reached": ["Model N, batch 1"]},
    }


ROW = Row(
    model="m",
    title="Model M, batch 1",
    batch=1,
    inputs=["f32[1]"],
    n_parameters=1,
    floor=None,
    floor_error="none",
    schedules=[],
    results={
        "eager": Result(None, None, 1.0, 1e-7, True, (3e-3, 4e-3, 9e-3)),
        "auto": Result(None, None, 1.0, 1e-7, True, (1e-3, 2e-3, 3e-3)),
        "rival": Result("ValueError: no"),
    },
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_json(tmp_path / "results" / "cpu", "inference", document([], [ROW]))
    return tmp_path / "results"


def test_several_models_have_a_mean_of_those_that_a_contestant_ran() -> None:
    slower = {"eager": (12e-3, 24e-3, 36e-3), "rival": (2e-3, 4e-3, 6e-3)}
    samples = {name: replace(ROW.results["auto"], samples=each) for name, each in slower.items()}
    other = replace(ROW, results={**ROW.results, **samples})
    plain = [asdict(ROW), asdict(other)]
    (mean,) = [line for line in comparison(document([], plain)) if "geometric" in line]
    # the square root of 3 times 12; the rival ran one model
    assert mean == "| geometric mean | - | - | - | 6.00 x of 2 models | - | 2.00 x of 1 model |"


def test_a_ratio_is_the_median_of_the_ratios_of_each_round(results: Path) -> None:
    text = page(read(results))
    assert "4 (3 to 9), 3.00 x" in text  # 3, 2 and 3 times, not the ratio of the medians
    assert "2 (1 to 3) |" in text
    assert "- Model M, batch 1, rival: ValueError: no" in text
    assert "Not reached: Model N, batch 1." in text
    assert "| a | 1.200 | 1 | **not met** |" in text
    command = "--models m --no-compile --rounds 2 --device cpu --name inference"
    assert f"`python -m bench.inference {command}`" in text


def test_without_results_of_a_gpu_the_readme_says_that_there_is_no_gain_yet(results: Path) -> None:
    text = with_gains(f"before\n{BEGIN}\nold\n{END}\nafter", read(results))
    assert text == f"before\n{BEGIN}\n{NO_GAINS}\n{END}\nafter"


def test_gains_on_a_cpu_are_those_of_results_with_many_models(results: Path) -> None:
    for name, n, slower in (("few", MANY_MODELS - 1, 100), ("many", MANY_MODELS, 3)):
        auto = ROW.results["auto"]
        eager = replace(auto, samples=[slower * each for each in auto.samples])
        row = replace(ROW, results={"auto": auto, "eager": eager})
        write_json(results / "cpu", name, document([], n * [row]))
    assert "eager takes 3.00 to 3.00 times the time of" in with_gains(BEGIN + END, read(results))


def test_gains_are_those_on_a_gpu(results: Path) -> None:
    write_json(results / "nvidia-x", "inference", document(["NVIDIA X"], [ROW]))
    text = with_gains(f"{BEGIN}{END}", read(results))
    assert "| NVIDIA X, PyTorch 2.11.0 | `inference`: 1 model |\n" in text
    assert "| eager | 3.00 |\n| rival | failed on 1 model |\n" in text
    assert FUSED not in text


def test_one_stream_of_inductors_kernels_is_compared_with_several(results: Path) -> None:
    rows, auto = list[Row](), ROW.results["auto"]
    for factor in (2, 8):
        slower = replace(auto, samples=[factor * each for each in auto.samples])
        ran = {"auto": auto, "fused": auto, "reduce-overhead": slower}
        rows.append(replace(ROW, results=ran))
    write_json(results / "nvidia-x", "inference", document(["NVIDIA X"], rows))
    text = with_gains(f"{BEGIN}{END}", read(results))
    assert f"| {FUSED} | 4.00 (2.00 to 8.00) |\n" in text


def test_each_result_of_a_gpu_has_a_column(results: Path) -> None:
    only_ours = replace(ROW, results={"auto": ROW.results["auto"]})
    for name, rows in (("first", [ROW, ROW]), ("second", [only_ours])):
        write_json(results / "nvidia-x", name, document(["NVIDIA X"], rows))
    text = with_gains(f"{BEGIN}{END}", read(results))
    assert "| `inference`: 2 models | `inference`: 1 model |\n" in text
    assert "| eager | 3.00 | - |\n" in text


def test_a_readme_without_a_place_for_gains_is_an_error(results: Path) -> None:
    with pytest.raises(ReportError, match="no lines <!-- gains"):
        with_gains("nothing", read(results))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"command": "inference"}', "{"])
def test_a_file_that_is_no_result_is_named(results: Path, text: str) -> None:
    (results / "cpu" / "broken.json").write_text(text)
    with pytest.raises(ReportError, match=r"broken\.json is no result"):
        read(results)


def test_the_same_results_make_the_same_files(results: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}{END}")
    arguments = ["--results", str(results), "--readme", str(readme)]
    assert main(arguments) == 0
    made = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert {path.name for path in made} == {"README.md", "inference.svg", "inference.json"}
    assert main(arguments) == 0
    assert made == {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}


def test_what_the_repository_shows_is_what_its_results_say(tmp_path: Path) -> None:
    results, readme = tmp_path / "results", tmp_path / "README.md"
    shutil.copytree(RESULTS, results)
    shutil.copy(README, readme)
    assert main(["--results", str(results), "--readme", str(readme)]) == 0
    assert (results / "README.md").read_text() == (RESULTS / "README.md").read_text()
    assert readme.read_text() == README.read_text()
    pictures = [path.relative_to(RESULTS) for path in RESULTS.rglob("*.svg")]
    assert pictures
    assert all((results / path).exists() for path in pictures)


def test_memory_is_shown_over_one_stream(results: Path) -> None:
    memory = {"n_streams": 2, "reserved_bytes": 3 << 20, "pooled_bytes": 3 << 20, "peak_bytes": 1}
    serial = memory | {"n_streams": 1, "reserved_bytes": 2 << 20, "pooled_bytes": 1 << 20}
    row = {"model": "m", "title": "M", "batch": 1, "policies": {"serial": serial, "nimble": memory}}
    made = document([], [], "memory") | {"results": {"rows": [row]}}
    (results / "cpu" / "memory.json").write_text(json.dumps(made))
    assert "| M | 2.0, 1.00 x [1.00 x] | 3.0, 1.50 x [3.00 x] |" in page(read(results))


def test_kernels_are_shown_over_pytorchs(results: Path) -> None:
    row = {"model": "m", "title": "M", "batch": 1, "counts": {"PyTorch": 30, "both": 12}}
    made = document([], [], "kernels") | {"results": {"rows": [row]}}
    (results / "cpu" / "kernels.json").write_text(json.dumps(made))
    assert "| M | 30 | 12, 2.50 x fewer |" in page(read(results))


def test_predictions_are_shown_beside_what_was_measured_and_published(results: Path) -> None:
    there = {"device": "x", "schedules": {"serial": 6e3, "nimble": 3e3, "auto": 3e3}, "bound": 2e3}
    here = {"samples": [2e-3, 4e-3, 3e-3], "predicted": 3.3e-3, "n_tasks": 1, "n_guessed": 0}
    row = {"model": "m", "title": "M", "batch": 1, "here": {"serial": here}}
    published = {"model": "m", "device": "y", "source": "Z, 2020", "published": 4, "predicted": 5}
    rows = {
        "rows": [row | {"there": there | {"reason": "why"}}],
        "published": [published],
        "not_reached": [],
    }
    made = document([], [], "simulation") | {"results": rows}
    (results / "cpu" / "simulation.json").write_text(json.dumps(made))
    text = page(read(results))
    assert "| M | 3, 3.3 (+10%) | 6 | 3, 2.00 x (nimble) | 2 | why |" in text
    assert "| m | y | Z, 2020 | 4 | 5 | +25% |" in text


@pytest.mark.parametrize("stand_in", [False, True])
def test_host_times_are_shown_by_way_and_say_where_no_gpu_was(
    results: Path, stand_in: bool
) -> None:
    def took(us: float) -> dict[str, float]:
        return {"median": us, "min": us / 2, "max": 2 * us, "n_samples": 3}

    forward = {"n_inputs": 1, "n_parameters": 4, "training": False}
    step = {"n_inputs": 2, "n_parameters": 4, "training": True}
    times = [
        forward | {"by_way": {"bare replay": took(1), "eager": took(30)}},
        step | {"by_way": {"eager": took(90)}},
    ]
    made = document(["X"], [], "overhead")
    made |= {"results": {"host time": times, "stand-in runtime": stand_in}}
    (results / "cpu" / "overhead.json").write_text(json.dumps(made))
    text = page(read(results))
    assert "| bare replay | 1.0 (0.5) |  |" in text
    assert "| eager | 30.0 (15.0) | 90.0 (45.0) |" in text
    assert ("no GPU's time" in text, "on this GPU" in text) == (stand_in, not stand_in)


def test_predictions_with_fused_kernels_are_shown_beside_pytorchs(results: Path) -> None:
    def there(serial: float, auto: float) -> dict[str, Any]:
        schedules = {"serial": serial, "auto": auto}
        return {"device": "x", "schedules": schedules, "bound": 1.0, "reason": "why"}

    row = {"model": "m", "title": "M", "batch": 1}
    whole = row | {
        "n_kernels": {"PyTorch's": 9, "Inductor's": 5},
        "there": {"PyTorch's": there(80, 50), "Inductor's": there(60, 30)},
        "error": "",
    }
    part = row | {
        "title": "N",
        "n_kernels": {"PyTorch's": 9},
        "there": {"PyTorch's": there(80, 50)},
        "error": "inductor: not this one\nnor this line",
    }
    made = document([], [], "fusion")
    made |= {"options": {"gpu": "h100"}, "results": {"rows": [whole, part]}}
    (results / "cpu" / "fusion.json").write_text(json.dumps(made))
    text = page(read(results))
    assert "| M | 9: 80, 50 | - | 5: 60, 30 | - | 2.00 x | why |" in text
    assert "| N | 9: 80, 50 | - | - | - | - | inductor: not this one |" in text
