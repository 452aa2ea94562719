"""Tests of nimble_fx.frontend.calls."""
