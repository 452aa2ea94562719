"""Traces of torch.profiler as activities that can be simulated."""

from nimble_fx.traces.recorded import Recorded, read

__all__ = ["Recorded", "read"]
