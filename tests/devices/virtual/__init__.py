"""Tests of the virtual device."""
