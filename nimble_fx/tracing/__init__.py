"""Turns an ATen graph of PyTorch into a task graph.

In: the `GraphModule` from AOTAutograd. First come passes that return an ATen graph: they fold
constants, move inputs to the device, and split off the part that runs on the CPU. Then comes
`aten_to_tasks`. Out: a `TaskGraph` without streams, its constants, and the user's names. It
imports the IR.
"""
