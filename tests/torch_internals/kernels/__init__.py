"""Tests of `nimble_fx.torch_internals.kernels`."""
