"""Tests of nimble_fx.files."""
