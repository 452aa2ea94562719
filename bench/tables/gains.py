"""The README's table of gains, as Markdown: times of a call over those of the default."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import geometric_mean

from bench.tables.markdown import Document, ratios, rows_of, table
from bench.tables.rows import OURS, Result, Row
from nimble_fx.ir.display import plural

NO_GAINS = (
    "No gain on a GPU has been measured yet: there is no result of one in "
    "[`bench/results/`](bench/results/README.md)."
)

EXPLANATION = (
    "Time of a call in inference, divided by the time with the default options (in the last row "
    'with `kernels="inductor"`): above 1, nimble_fx is faster than the row. Geometric means over '
    "models."
)

TITLES = {
    "eager": "eager",
    "cudagraphs": '`backend="cudagraphs"`',
    "reduce-overhead": 'Inductor, `mode="reduce-overhead"`',
    "serial": '`policy="serial"`: one stream',
    "nimble": '`policy="nimble"`',
    "folded": "`fold_weights=True`",
    "fused-serial": '`kernels="inductor", policy="serial"`',
    "fused": '`kernels="inductor"`',
}
"""What users call the contestants, in the order of the rows."""

FUSED = f"{TITLES['reduce-overhead']}, over {TITLES['fused']}"
"""One stream of Inductor's kernels over several: what streams gain in addition to fusion."""

MANY_MODELS = 20
"""A mean over so many models says something about other models too."""


def gains(documents: Sequence[Document]) -> list[str]:
    """The times of each contestant over ours, on each GPU and on a CPU.

    Args:
        documents: results of `bench.inference`.
    """
    on_gpu = [each for each in documents if each["options"]["device"].startswith("cuda")]
    lines = [EXPLANATION] if on_gpu else [NO_GAINS]
    for where, results in groupby(on_gpu, _where):
        lines += ["", *_table(where, list(results))]
    return [*lines, *_on_cpu(documents)]


def _where(document: Document) -> str:
    at = document["environment"]
    return f"{at['gpus'][0]}, PyTorch {at['torch']}"


def _table(where: str, documents: Sequence[Document]) -> list[str]:
    """A row for each contestant, and a column for each result."""
    results = [rows_of(each) for each in documents]
    ran = {name for rows in results for row in rows for name in row.results} - {OURS}
    names = [*[name for name in TITLES if name in ran], *sorted(ran - TITLES.keys())]
    body = [[TITLES.get(name, name), *(_mean(rows, name) for rows in results)] for name in names]
    fused = [FUSED, *map(_streams_on_fusion, results)]
    if any(cell != "-" for cell in fused[1:]):
        body.append(fused)
    names = [str(each["options"]["name"]) for each in documents]
    sizes = [plural(len(rows), "model") for rows in results]
    heads = [f"`{name}`: {size}" for name, size in zip(names, sizes, strict=True)]
    return table([where, *heads], body)


def _mean(rows: Sequence[Row], name: str) -> str:
    """The mean of a contestant's times over ours, and on how many models it failed."""
    times = ratios(rows, name, over=OURS)
    n_failed = sum(row.results.get(name, Result()).error is not None for row in rows)
    failures = [f"failed on {plural(n_failed, 'model')}"] if n_failed else []
    return "; ".join([*([f"{geometric_mean(times):.2f}"] if times else []), *failures]) or "-"


def _streams_on_fusion(rows: Sequence[Row]) -> str:
    """The mean of what streams gain in addition to fusion, with the least and the greatest."""
    times = ratios(rows, "reduce-overhead", over="fused")
    if not times:
        return "-"
    return f"{geometric_mean(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def _on_cpu(documents: Sequence[Document]) -> Iterator[str]:
    """A sentence about the means of eager's times over ours, from results with many models."""
    on_cpu = [rows_of(each) for each in documents if each["options"]["device"] == "cpu"]
    times = [ratios(rows, "eager", over=OURS) for rows in on_cpu if len(rows) >= MANY_MODELS]
    figures = sorted(geometric_mean(each) for each in times if each)
    if figures:
        yield ""
        yield (
            f"On a CPU, where one stream runs, eager takes {figures[0]:.2f} to {figures[-1]:.2f} "
            "times the time of a call with the default options (geometric means of "
            f"{plural(len(figures), 'result')} of at least {MANY_MODELS} models)."
        )
