"""Tests of rows, tables and plots."""
