"""Benchmarks of nimble_fx."""
