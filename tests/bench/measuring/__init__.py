"""Tests of `bench.measuring`."""
