"""Tests of how figures are taken."""
