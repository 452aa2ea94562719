"""Tests of `bench.command_line`."""
