"""Selects the schedule of a program: search space, predicted costs, cache on disk.

In: a traced graph and the user's options. Out: one schedule, or several for autotuning, each proved
legal and emitted. It imports the pipeline of passes, costs, simulation, verifier and code
generator.
"""
