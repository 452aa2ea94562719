"""Scheduling problems, from models or random, and how far a schedule is from the best."""
