"""Measures times and their floor, accuracy against float64, and the stages of a compile."""
