"""Tests of what tasks cost."""
