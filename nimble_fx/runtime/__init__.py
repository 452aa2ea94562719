"""Runs loaded programs: launch, capture, replay, memory pools and the cache of captured graphs.

In: a loaded module, its constants and a device. Out: a callable that keeps AOTAutograd's boxed
convention. It imports devices, the code generator, the IR and the table of candidates, and
never a pass.
"""
