"""Tests of nimble_fx.serialization."""
