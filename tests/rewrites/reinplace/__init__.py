"""Tests of `nimble_fx.rewrites.reinplace`."""
