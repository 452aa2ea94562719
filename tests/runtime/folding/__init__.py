"""Tests of nimble_fx.runtime.folding."""
