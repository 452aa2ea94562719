"""Recorded runs: traces of torch.profiler as activities that can be simulated again."""

from nimble_fx.traces.recorded import Recorded, read

__all__ = ["Recorded", "read"]
