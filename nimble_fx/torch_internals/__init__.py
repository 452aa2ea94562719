"""Names of PyTorch that are not public, and what is built on them directly.

It imports nothing of this project but the errors.
"""
