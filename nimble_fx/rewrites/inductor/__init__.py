"""Replaces a graph's operators with Inductor's kernels, each an operator that tasks can call.

Inductor compiles the graph (`torch_internals.kernels.inductor`); `declarations` and `statements`
read the module that it wrote, `kernel_graph` turns the module into a graph, and `same_interface`
checks that callers see no difference.
"""
