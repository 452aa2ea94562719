"""What a run would take if something were different: a faster operator, or another GPU.

In: a program or a recorded run, and edits of it. Out: a predicted time, before and after. It
imports programs, costs, simulation and traces.
"""
