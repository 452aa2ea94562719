"""The task graph and what can be computed from any: dependencies, sizes, graph algorithms.

Data and pure functions. It imports nothing of this project but the errors and PyTorch's internals.
"""
