"""The algorithms that passes and selection share: launch orders, and list scheduling by cost.

In: a `TaskGraph` and the costs of its tasks. Out: an order of the tasks, or a stream for each. It
imports the IR, the costs and the simulation.
"""
