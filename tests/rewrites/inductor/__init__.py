"""Tests of `nimble_fx.rewrites.inductor`."""
