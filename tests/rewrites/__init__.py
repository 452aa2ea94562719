"""Tests of the rewrites of ATen graphs."""
