"""Tests of the zoo's models."""
