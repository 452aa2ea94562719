"""Tests of `nimble_fx.torch_internals.dynamo`."""
