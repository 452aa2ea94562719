"""Tests of scheduling problems."""
