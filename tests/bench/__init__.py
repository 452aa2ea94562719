"""Tests of the benchmarks' parts."""
