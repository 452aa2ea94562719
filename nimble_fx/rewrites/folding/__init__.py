"""Splits off the part of a graph that depends only on weights, so that calls need not compute it.

`fold_weights` runs the rewrites of this folder in order: it folds batch normalization into
convolutions, selects memory formats and library kernels, and then splits the graph in two.
"""
