"""Tests of nimble_fx.runtime.capture."""
