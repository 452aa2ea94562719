"""Tests of nimble_fx.ir."""
