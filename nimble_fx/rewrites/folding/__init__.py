"""A graph whose weights are folded: what depends on them alone becomes a graph of its own.

`fold_weights` puts the rewrites of this folder in order: batch normalization into convolutions,
the format and the kernels that a library has for what is left, and the cut between both graphs.
"""
