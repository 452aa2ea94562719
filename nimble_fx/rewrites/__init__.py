"""Rewrites of ATen graphs: fewer kernels, or faster ones, for the same values.

In and out: an `fx.GraphModule` with fake tensors in `meta["val"]`. Each rewrite is one file, whose
docstring says what it replaces (Before, After), what it requires, and what it ensures; the other
files are what several rewrites use.

May import: `tracing` (escape analysis, names), `ir`, `torch_internals`, `errors`.
"""
