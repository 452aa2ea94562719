"""Tests of nimble_fx.traces."""
