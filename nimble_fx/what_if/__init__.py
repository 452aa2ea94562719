"""Predicts the time of a run after changes: a faster operator, or another GPU.

In: a program or a recorded run, and edits of it. Out: the predicted time before and after. It
imports programs, costs, simulation and traces.
"""
