"""Shared by tests: models, oracles, mutants, runners. None of these files is a test."""
