"""Tests of nimble_fx.verify."""
