"""From an ATen graph of PyTorch's to a task graph.

In: the `GraphModule` that AOTAutograd made. First passes over it, which return an ATen graph:
constants are folded, inputs moved to the device, the host's part split off. Then `aten_to_tasks`.
Out: a `TaskGraph` without streams, its constants, and the user's names. It imports the IR.
"""
