"""Tests of nimble_fx.editing."""
