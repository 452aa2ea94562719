"""Activities that wait for each other, on queues, some of them sharing an engine."""

from hypothesis import strategies as st

from nimble_fx.simulation.discrete_event import Activity

HOST = "host"
STREAMS = ("s0", "s1", "s2")

_parts = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@st.composite
def activities(
    draw: st.DrawFn, max_size: int = 12, shared: bool = True, delays: bool = True
) -> list[Activity]:
    """In an order in which each comes behind those that it waits for.

    Args:
        draw: given by hypothesis.
        max_size: at most so many.
        shared: those on streams ask for parts of the engine's processors and bandwidth.
        delays: some pass time between an end and what waited for it.
    """
    made: list[Activity] = []
    for i in range(draw(st.integers(0, max_size))):
        names = [each.name for each in made]
        before = draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
        after = tuple((name, draw(st.integers(0, 5)) if delays else 0.0) for name in before)
        queue, us = draw(st.sampled_from((HOST, *STREAMS))), draw(st.integers(0, 8))
        on_device = queue != HOST
        share, bandwidth = (draw(_parts) if shared and on_device else 0.0 for _ in range(2))
        engine = "gpu" if on_device else None
        made.append(Activity(f"a{i}", queue, us, after, engine, share, bandwidth))
    return made
