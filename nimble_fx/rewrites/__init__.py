"""Rewrites of ATen graphs: fewer kernels, or faster ones, for the same values.

What comes in and goes out is an `fx.GraphModule` with fake tensors in `meta["val"]`. Each file is
one rewrite, which says what it replaces (Before, After), what it requires, and what it ensures.

May import: `tracing` (escape analysis, names), `ir`, `torch_internals`.
"""
