"""A graph's operators by Inductor's kernels, each of which is an operator that tasks can call.

Inductor compiles the graph (`torch_internals.kernels.inductor`); `declarations` and `statements`
read what it wrote, `kernel_graph` makes a graph of it, and `same_program` checks that callers see
no difference.
"""
