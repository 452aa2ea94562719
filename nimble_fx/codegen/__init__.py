"""Emits a scheduled task graph as the text of a Python module, and loads the text as a callable.

In: a `TaskGraph` with streams, waits and frees. Out: `emit` returns the text, `load` executes it.
It imports the IR and `torch_internals`.
"""
