"""Graph breaks of a model that is compiled ahead: code that PyTorch leaves to eager."""

from traceback import FrameSummary
from typing import Any

from torch.fx import GraphModule

from nimble_fx.fallback import Fallback
from nimble_fx.internal_files import is_internal
from nimble_fx.ir.display import plural, printable
from nimble_fx.ir.task_graph import Source
from nimble_fx.torch_internals.dynamo.counters import graph_breaks, short_reason

_NO_REASON = (
    "it computes nothing, or torch.compile is disabled, or PyTorch has said why already, and does "
    "so again after torch.compiler.reset()"
)


class GraphBreaks:
    """The graph breaks while one model is compiled: why, and where.

    No backend hears of a break outside of a graph, such as in a loop. Dynamo counts these too, but
    also some errors after which it goes on with the graph.
    """

    def __init__(self) -> None:
        self._before = graph_breaks()
        self._n_graphs = self._n_broken = 0
        self._sources: dict[str, Source] = {}

    def add_graph(self, gm: GraphModule) -> None:
        """Adds a graph that Dynamo passes to the backend."""
        self._n_graphs += 1
        ended: Any = getattr(gm, "compile_subgraph_reason", None)
        if ended is not None and ended.graph_break:
            self._n_broken += 1
            source = _innermost(ended.user_stack)
            if source is not None:
                self._sources.setdefault(short_reason(ended.reason), source)

    def fallback(self, name: str, is_whole: bool) -> Fallback | None:
        """What PyTorch left to eager, or None.

        Args:
            name: of the model.
            is_whole: whether Dynamo's code for the model itself is known to call one graph.
        """
        reasons = list(graph_breaks() - self._before)
        if not self._n_graphs:
            why = reasons[0] if reasons else _NO_REASON
            reason = (
                f"PyTorch found no graph in it ({why}), so that nothing is compiled ahead of time. "
                "TORCH_LOGS=graph_breaks shows the line"
            )
            return Fallback(name, "in eager", reason)
        if not reasons or (is_whole and not self._n_broken):
            return None
        why = next((reason for reason in reasons if reason in self._sources), reasons[0])
        source = self._sources.get(why)
        if source is None and len(reasons) == 1:  # Dynamo may have two texts for one break
            source = next(iter(self._sources.values()), None)
        where = f" at {source}" if source else ""
        where += f", `{source.code}`," if source and source.code else ""
        more = f", and for {plural(len(reasons) - 1, 'other reason')}" if len(reasons) > 1 else ""
        reason = (
            f"PyTorch breaks its graph{where} ({why}){more}, and runs the code between its graphs "
            "in eager. TORCH_LOGS=graph_breaks lists all breaks"
        )
        return Fallback(name, "partly in eager", reason, source=source)


def _innermost(stack: list[FrameSummary]) -> Source | None:
    """The innermost line of the user's code, if there is one."""
    for frame in reversed(stack):
        if not is_internal(frame.filename):
            file, code = printable(frame.filename), printable(frame.line or "")
            return Source(file, frame.lineno or 0, code)
    return None
