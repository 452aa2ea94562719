"""What a program computes from weights alone: computed once, and again when a weight changes.

In: the program of the weights, and the weights at each call. Out: the tensors that the program of
the calls takes.
"""
