"""Runs loaded programs: launch, capture, replay, memory pools and the cache of captured graphs.

In: a loaded module, its constants and a device. Out: a callable of AOTAutograd's boxed calling
convention. It imports devices, code generator and IR, and never a pass.
"""
