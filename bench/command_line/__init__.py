"""Shared by the commands: options, output on a terminal, and results as JSON."""
