"""Results as Markdown: a table for each command and device."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from bench.fusion import HEADER, FusionRow, fusion_cells
from bench.kernels import KernelRow, cells
from bench.measuring.host_time import HostTime, host_time_cells
from bench.measuring.predicted import There
from bench.measuring.timing import Spread
from bench.memory import MemoryRow
from bench.problems.optimality_gap import DistanceRow, distance_cells
from bench.simulation import SimulationRow
from bench.tables.published import Comparison
from bench.tables.rows import OURS, Result, Row
from nimble_fx.ir.display import plural

Document = Mapping[str, Any]
"""The JSON of a command: its options, the environment, targets and results."""


def comparison(document: Document) -> list[str]:
    """The rows of `bench.inference` or `bench.training`."""
    rows = rows_of(document)
    names = list(dict.fromkeys(name for row in rows for name in row.results))
    header = ["model", "tasks / longest path", "longest path", "all tasks", *names]
    body = [[*_floor(row), *(_result(row, name) for name in names)] for row in rows]
    if len(rows) > 1:
        means = [_mean(rows, name) for name in names]
        body.append(["geometric mean", *["-"] * (len(header) - 1 - len(names)), *means])
    left = document["results"]["not_reached"]
    remarks = [
        f"- {row.title}, {name}: {result.error or result.note}"
        for row in rows
        for name, result in row.results.items()
        if result.error or result.note
    ]
    return [
        "Milliseconds a call, median (least to greatest), and how many times those of "
        f"{OURS}, the default, in the same rounds. *Longest path* and *all tasks* are of the "
        "tasks' own times.",
        "",
        *table(header, body),
        *(["", f"Not reached: {'; '.join(left)}."] if left else []),
        *(["", "Failed, or not what the name promises:", "", *remarks] if remarks else []),
    ]


def memory(document: Document) -> list[str]:
    """The rows of `bench.memory`."""
    rows = [MemoryRow.of(plain) for plain in document["results"]["rows"]]
    names = list(dict.fromkeys(name for row in rows for name in row.policies))
    body = [[row.title, *(_mib(row, name) for name in names)] for row in rows]
    return [
        "MiB that the allocator takes, and how many times those of one stream; in brackets how "
        "many times if each stream had a pool without segments; behind a slash what was measured "
        "on this GPU.",
        "",
        *table(["model", *names], body),
    ]


def kernels(document: Document) -> list[str]:
    """The rows of `bench.kernels`."""
    rows = [KernelRow(**plain) for plain in document["results"]["rows"]]
    ways = list(dict.fromkeys(way for row in rows for way in row.counts))
    return table(["model", *ways], [[row.title, *cells(row.counts)] for row in rows])


def overhead(document: Document) -> list[str]:
    """The rows of `bench.overhead` that need PyTorch's CUDA build; empty without it."""
    times = [HostTime.of(plain) for plain in document["results"].get("host time", ())]
    if not times:
        return []
    where = "on this GPU"
    if document["results"]["stand-in runtime"]:
        where = "on a stand-in for the CUDA runtime, whose kernels do nothing: no GPU's time"
    return [
        f"The host's time of a call, microseconds, {where}.",
        "",
        *table(*host_time_cells(times)),
    ]


def fusion(document: Document) -> list[str]:
    """The rows of `bench.fusion`."""
    rows = [FusionRow.of(plain) for plain in document["results"]["rows"]]
    return [
        f"Microseconds a call on {document['options']['gpu']}, by the roofline and the simulator: "
        "nothing is measured. Of each way: kernels, and the time on one stream and on those that "
        "are chosen; *streams gain* is one stream's time over that, by the last way.",
        "",
        *table(HEADER, [fusion_cells(row) for row in rows]),
    ]


def optimality(document: Document) -> list[str]:
    """The rows of `bench.optimality`, by policy and number of streams."""
    rows = [DistanceRow.of(plain) for plain in document["results"]["rows"]]
    header, body = distance_cells(rows)
    n_proven = sum(row.proven for row in rows)
    return [
        "Simulated time over that of the shortest schedule, less 1, where tasks do not slow each "
        "other down, and over a simple bound where they do (*sharing*). "
        f"{n_proven} of {len(rows)} optima are proven; of the others, distances are to the bound.",
        "",
        *table(header, body),
    ]


def simulation(document: Document) -> list[str]:
    """The rows of `bench.simulation`, and published times with their predictions."""
    rows = [SimulationRow.of(plain) for plain in document["results"]["rows"]]
    compared = [Comparison(**plain) for plain in document["results"]["published"]]
    left = document["results"]["not_reached"]
    policies = list(dict.fromkeys(name for row in rows for name in row.here))
    header = ["model", *(f"{name}: measured, predicted" for name in policies)]
    header += ["serial there", "best there", "bound", "why"]
    body = [
        [row.title, *(_predicted(row, name) for name in policies), *_there(row.there)]
        for row in rows
    ]
    named = rows[0].there.device if rows else "-"
    return [
        "Milliseconds a call. *Measured* is the median here, *predicted* is simulated from the "
        f"times of its tasks here; *there* is {named}, by the roofline, and the bound is what no "
        "schedule goes below.",
        "",
        *table(header, body),
        *(["", f"Not reached: {'; '.join(left)}."] if left else []),
        *(["", "Times that were published, of one stream, and by the roofline:", ""]),
        *table(
            ["model", "device", "source", "published, ms", "predicted, ms", "error"],
            [
                [
                    c.model,
                    c.device,
                    c.source,
                    f"{c.published:g}",
                    f"{c.predicted:.3g}",
                    _off(c.error),
                ]
                for c in compared
            ],
        ),
    ]


def targets(document: Document) -> list[str]:
    """The rows of the targets."""
    rows = [
        [each["name"], f"{each['figure']:.3f}", f"{each['limit']:g}", _verdict(each["met"])]
        for each in document["targets"]
    ]
    return table(["target", "figure", "limit", ""], rows) if rows else []


def rows_of(document: Document) -> list[Row]:
    """The rows of a comparison."""
    return [Row.of(plain) for plain in document["results"]["rows"]]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column is aligned left, the others right."""
    lines = [_line(header), _line([":--", *["--:"] * (len(header) - 1)])]
    return lines + [_line(row) for row in rows]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _floor(row: Row) -> list[str]:
    floor = row.floor
    if floor is None:
        return [row.title, "-", "-", "-"]
    times = (f"{1e3 * seconds:.2f}" for seconds in (floor.path_seconds, floor.total_seconds))
    return [row.title, f"{floor.parallelism:.2f}", *times]


def _result(row: Row, name: str) -> str:
    result = row.results.get(name, Result())
    if result.error is not None:
        return "failed"
    if not result.samples:
        return "-"
    low, middle, high = _milliseconds(Spread.of(result.samples))
    over = row.ratio(name, over=OURS)
    times = "" if over is None or name == OURS else f", {over.median:.2f} x"
    return f"{middle} ({low} to {high}){times}"


def _mean(rows: Sequence[Row], name: str) -> str:
    """The geometric mean of a contestant's times over ours, for the models that both ran."""
    times = ratios(rows, name, over=OURS)
    if name == OURS or not times:
        return "-"
    return f"{geometric_mean(times):.2f} x of {plural(len(times), 'model')}"


def ratios(rows: Sequence[Row], name: str, *, over: str) -> list[float]:
    """A contestant's time over another's, for each model that both ran."""
    ratios = [row.ratio(name, over=over) for row in rows]
    return [ratio.median for ratio in ratios if ratio is not None]


def _milliseconds(spread: Spread) -> tuple[str, str, str]:
    low, middle, high = (f"{1e3 * x:.3g}" for x in (spread.min, spread.median, spread.max))
    return low, middle, high


def _mib(row: MemoryRow, name: str) -> str:
    mine, serial = row.policies[name], row.policies["serial"]
    times = mine.reserved_bytes / max(serial.reserved_bytes, 1)
    pooled = mine.pooled_bytes / max(serial.pooled_bytes, 1)
    measured = "" if mine.measured_bytes is None else f" / {mine.measured_bytes / 2**20:.1f}"
    return f"{mine.reserved_bytes / 2**20:.1f}, {times:.2f} x [{pooled:.2f} x]{measured}"


def _predicted(row: SimulationRow, policy: str) -> str:
    here = row.here.get(policy)
    if here is None:
        return "-"
    measured = Spread.of(here.samples).median
    return f"{1e3 * measured:.3g}, {1e3 * here.predicted:.3g} ({_off(here.error)})"


def _there(there: There) -> list[str]:
    serial, best = (there.schedules[name] / 1e3 for name in ("serial", there.best))
    gain = f"{best:.3g}, {there.gain:.2f} x ({there.best})"
    return [f"{serial:.3g}", gain, f"{there.bound / 1e3:.3g}", there.reason]


def _off(error: float) -> str:
    return f"{error:+.0%}"


def _verdict(met: bool) -> str:
    return "met" if met else "**not met**"
