"""Tests of nimble_fx.scheduling."""
