"""HolisticTraceAnalysis, an independent judge of what a trace's critical path is."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
"""Recorded traces; the README there says where they are from."""


def recorded(name: str) -> Path:
    """The file of a recorded trace."""
    return DATA / f"{name}.json.gz"


def on_critical_path(
    path: Path, within: str, instance: int, pauses: bool
) -> dict[tuple[str, int], int]:
    """The device's activities on it, by name and correlation, with their microseconds.

    Args:
        path: of the trace.
        within: the mark that it is for; "" for all.
        instance: which mark of that name.
        pauses: let the time that passes between two outermost operators of a thread count, which
            HTA says is none.
    """
    pytest.importorskip("hta", reason="HolisticTraceAnalysis is not installed")
    from hta.analyzers import critical_path_analysis as analyzer
    from hta.common.trace import Trace

    trace = Trace(trace_files={0: path.name}, trace_dir=str(path.parent))
    trace.parse_traces()
    trace.align_and_filter_trace()
    analysis = analyzer.CriticalPathAnalysis.critical_path_analysis
    graph, found = analysis(trace, 0, within, instance)
    assert found
    if pauses:
        for begin, end, edge in graph.edges(data=True):
            if edge["object"].type is analyzer.CPEdgeType.DEPENDENCY:
                edge["weight"] = graph.node_list[end].ts - graph.node_list[begin].ts
        assert graph.critical_path()
    rows = (graph.trace_df.loc[event] for event in graph.critical_path_events_set)
    names = graph.symbol_table.get_sym_table()
    return {
        (names[int(row["name"])], int(row["correlation"])): int(row["dur"])
        for row in rows
        if row["stream"] >= 0
    }
