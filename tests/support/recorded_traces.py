"""The recorded traces of tests/data, and their critical paths by an independent tool.

The judge is the package HolisticTraceAnalysis (HTA). Its answers are in `critical_paths.json`
beside the traces, because it installs a hundred packages. `pip install -e .[judge]` and
`python -m tests.support.recorded_traces` write them anew.
"""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
"""Recorded traces; the README there says where they are from."""

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
WARM_UP = "[param|pytorch.model.alex_net|0|0|0|warmup|forward]"
RUNS = [
    ("alexnet_trace", None, 0),
    ("alexnet_trace", WARM_UP, 0),
    ("alexnet_trace", WARM_UP, 1),
    ("alexnet_trace", FORWARD, 0),
    ("alexnet_trace", FORWARD, 1),
    ("event_sync_multi_stream_trace", None, 0),
]
"""Trace, the mark of a part of it (None for all), and which mark of that name."""

JUDGED = [(*run, True) for run in RUNS] + [(*run, False) for run in RUNS[3:]]
"""With a last member: whether the pauses between two outermost operators of a thread count.

HTA says that they take no time.
"""


def recorded(name: str) -> Path:
    """The file of a recorded trace."""
    return DATA / f"{name}.json.gz"


def judged(name: str, within: str | None, instance: int, pauses: bool) -> dict[str, int]:
    """The device's activities on the critical path by HTA, with their microseconds.

    The arguments are a member of `JUDGED`; the keys are names and correlations: "gemm #17".
    """
    answers = json.loads((DATA / "critical_paths.json").read_text())
    asked = [name, within, instance, pauses]
    (found,) = [answer["critical_path"] for answer in answers if answer["asked"] == asked]
    return dict(found)


def ask_the_judge(name: str, within: str | None, instance: int, pauses: bool) -> dict[str, int]:
    """The same, computed by HTA."""
    from hta.analyzers import critical_path_analysis as analyzer
    from hta.common.trace import Trace

    trace = Trace(trace_files={0: recorded(name).name}, trace_dir=str(DATA))
    trace.parse_traces()
    trace.align_and_filter_trace()
    analysis = analyzer.CriticalPathAnalysis.critical_path_analysis
    graph, found = analysis(trace, 0, within or "", instance)
    if not found:
        raise ValueError(f"HTA finds no critical path in {name}, {within}, {instance}")
    if pauses:
        for begin, end, edge in graph.edges(data=True):
            if edge["object"].type is analyzer.CPEdgeType.DEPENDENCY:
                edge["weight"] = graph.node_list[end].ts - graph.node_list[begin].ts
        if not graph.critical_path():
            raise ValueError(f"HTA finds no critical path with pauses in {name}")
    names = graph.symbol_table.get_sym_table()
    rows: list[Any] = [graph.trace_df.loc[event] for event in graph.critical_path_events_set]
    on_device = [row for row in rows if row["stream"] >= 0]
    return {
        f"{names[int(row['name'])]} #{int(row['correlation'])}": int(row["dur"])
        for row in sorted(on_device, key=lambda row: int(row["ts"]))
    }


if __name__ == "__main__":
    answers = [{"asked": run, "critical_path": ask_the_judge(*run)} for run in JUDGED]
    (DATA / "critical_paths.json").write_text(json.dumps(answers, indent=1) + "\n")
