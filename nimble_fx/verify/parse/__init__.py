"""Reads emitted modules back: what a text says, not what was meant by it."""

from nimble_fx.verify.parse.module import Parsed, parse

__all__ = ["Parsed", "parse"]
