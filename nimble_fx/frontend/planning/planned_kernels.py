"""Inductor's kernels in a plan: compiles the graph for a GPU of this machine."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.inductor_kernels import PredictedTime, with_inductor_kernels
from nimble_fx.torch_internals.names import FakeTensor, FakeTensorMode, pytree

_AS_TRACED = "nimble_fx: as traced"


def planned_kernels(
    gm: GraphModule,
    traced_on: torch.device,
    device: torch.device | None,
    predicted_us: PredictedTime | None,
) -> GraphModule:
    """The graph with kernels that Inductor compiles for a GPU of this machine.

    Args:
        gm: an ATen graph with fake tensors in `meta["val"]`; it is not changed.
        traced_on: the device of its tensors.
        device: the GPU; None if there is none.
        predicted_us: see `with_inductor_kernels`.

    Raises:
        UnsupportedError: there is no GPU, or an operator has no results there, or Inductor cannot
            compile the graph.
    """
    if device is None:
        raise UnsupportedError("Inductor compiles for a GPU that PyTorch sees, and it sees none")
    try:
        moved = _moved(gm, traced_on, device)
    except Exception as error:  # whatever an operator's shape function raises
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnsupportedError(f"its operators do not run on {device}: {reason:.300}") from error
    made = with_inductor_kernels(moved, predicted_us)
    made.meta[_AS_TRACED] = gm
    return made


def without_kernels(gm: GraphModule) -> GraphModule:
    """The graph that `planned_kernels` was called with; any other graph unchanged."""
    traced: GraphModule = gm.meta.get(_AS_TRACED, gm)
    return traced


def _moved(gm: GraphModule, before: torch.device, after: torch.device) -> GraphModule:
    """A copy of the graph on another device: its fake tensors, and devices among its arguments."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {})).meta = dict(gm.graph.output_node().meta)
    for node in graph.nodes:
        node.args, node.kwargs = pytree.tree_map_only(
            torch.device, lambda each: after if each == before else each, (node.args, node.kwargs)
        )
    moved = GraphModule(gm, graph)
    inputs = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    mode = next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)
    if mode is not None:
        _Propagation(moved, mode, after).run_on_own_inputs()
    return moved


class _Propagation(FakeTensorProp):
    """Runs a graph on fake tensors of a device, which it keeps in `meta["val"]`."""

    def __init__(self, gm: GraphModule, mode: FakeTensorMode, device: torch.device) -> None:
        super().__init__(gm, mode)
        self._fake_mode, self._device = mode, device
        self._inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]

    def run_on_own_inputs(self) -> None:
        """Runs it on tensors like those that it was traced with."""
        self.propagate_dont_convert_inputs(*[self._like(x) for x in self._inputs])

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant, without its values."""
        return self._like(super().get_attr(target, args, kwargs))

    def _like(self, value: Any) -> Any:
        """A fake tensor of the same layout; values that are not tensors unchanged."""
        if not isinstance(value, Tensor):
            return value
        shape, stride = value.shape, value.stride()
        with self._fake_mode:
            return torch.empty_strided(shape, stride, dtype=value.dtype, device=self._device)
