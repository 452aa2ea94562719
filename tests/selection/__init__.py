"""Tests of nimble_fx.selection."""
