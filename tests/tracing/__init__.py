"""Tests of nimble_fx.tracing."""
