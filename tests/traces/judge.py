"""HolisticTraceAnalysis, an independent judge of what a trace's critical path is."""

import re
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

_ANALYZER = "hta.analyzers.critical_path_analysis"

DATA = Path(__file__).parents[3] / "shared" / "data"
"""Recorded traces; they are not in the repository."""


def recorded(name: str) -> Path:
    """A recorded trace's file; the test is skipped where it is not there."""
    path = DATA / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"there is no recorded trace {path}")
    return path


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
    analyzer = _analyzer()
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


def _analyzer() -> ModuleType:
    """HTA's analyzer, with two things written as pandas 3 wants them.

    HTA 0.5.0 is written for pandas 2. In pandas 3 `drop` refuses `axis` beside `columns`, and
    `df.x.fillna(0, inplace=True)` changes a copy.
    """
    if _ANALYZER in sys.modules:
        return sys.modules[_ANALYZER]
    spec = find_spec(_ANALYZER)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text()
    text = re.sub(r"drop\(\s*axis=1,\s*columns=", "drop(columns=", text)
    text = re.sub(
        r"(\w+)\.(\w+)\.fillna\(([^,]+), inplace=True\)", r'\1["\2"] = \1.\2.fillna(\3)', text
    )
    module = sys.modules[_ANALYZER] = module_from_spec(spec)
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module
