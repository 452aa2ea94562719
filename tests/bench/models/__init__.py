"""Tests of the models of bench."""
