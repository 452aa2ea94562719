"""Tests of nimble_fx.cost."""
