"""Edits of activities that wait for each other: which, how, and what they were made from."""
