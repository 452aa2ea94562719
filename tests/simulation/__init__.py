"""Tests of nimble_fx.simulation."""
