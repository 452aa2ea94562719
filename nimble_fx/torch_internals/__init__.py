"""The private PyTorch names that the project uses, and small functions on top of them.

It imports nothing of this project but the errors.
"""
