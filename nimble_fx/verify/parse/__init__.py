"""Parses the text of an emitted module back into a task graph, without the emitter's code."""

from nimble_fx.verify.parse.module import ParsedModule, parse

__all__ = ["ParsedModule", "parse"]
