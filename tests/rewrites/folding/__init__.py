"""Tests of `nimble_fx.rewrites.folding`."""
