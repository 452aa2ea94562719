"""Tests of nimble_fx.what_if."""
