"""Keeps the tensors that a program computes only from weights, until a weight changes.

In: the program that computes them, and the weights at each call. Out: the tensors, for the program
that runs in each call.
"""
