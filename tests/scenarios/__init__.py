"""Scenarios of compiled models, each compared with the same scenario in eager."""
