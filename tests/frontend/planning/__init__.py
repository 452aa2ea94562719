"""Tests of nimble_fx.frontend.planning."""
