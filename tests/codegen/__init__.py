"""Tests of nimble_fx.codegen."""
