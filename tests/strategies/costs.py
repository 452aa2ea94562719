"""Costs of tasks."""

from hypothesis import strategies as st

from nimble_fx.cost import Cost
from nimble_fx.cost.given_costs import GivenCosts
from nimble_fx.devices.specs import Device
from nimble_fx.ir.task_graph import TaskGraph


def cost(us: float, share: float = 0.0, bandwidth: float = 0.0) -> Cost:
    """A cost of which only what a simulation reads matters."""
    return Cost(us=us, nbytes=us, flops=us, share=share, bandwidth=bandwidth)


def device(event_us: float = 0.3, max_streams: int = 32) -> Device:
    """A device of which only what a simulation reads matters."""
    return Device(sms=1, tflops=1, gbps=1, event_us=event_us, max_streams=max_streams)


@st.composite
def given_costs(draw: st.DrawFn, graph: TaskGraph, sharing: bool = True) -> GivenCosts:
    """Costs of a graph's tasks, from nothing to 20 microseconds.

    Args:
        draw: given by hypothesis.
        graph: whose tasks.
        sharing: whether tasks ask for parts of the device.
    """
    parts = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0] if sharing else [0.0])
    tenths = st.integers(0, 200)
    costs = {
        task.name: cost(draw(tenths) / 10, draw(parts), draw(parts)) for task in graph.launching
    }
    return GivenCosts(device(draw(st.sampled_from([0.0, 0.3, 2.0]))), costs)
