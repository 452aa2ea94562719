"""Tests of nimble_fx.frontend.models."""
