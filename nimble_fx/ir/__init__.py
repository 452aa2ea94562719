"""The task graph and what holds for any: dependencies, sizes, operators, graph algorithms.

Data and pure functions. It imports nothing of this project but the errors and PyTorch's internals.
"""
