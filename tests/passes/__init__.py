"""Tests of the passes, one file a pass."""
