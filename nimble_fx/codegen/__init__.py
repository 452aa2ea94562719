"""From a scheduled task graph to the text of a Python module, and from the text to a callable.

In: a `TaskGraph` with streams, waits and frees. Out: `emit` returns the text, `load` executes it.
It imports the IR.
"""
