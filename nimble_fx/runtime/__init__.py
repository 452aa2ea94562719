"""How a loaded program runs: launched, captured, replayed, and whose memory that is.

In: a loaded module, its constants and a device. Out: a callable that keeps AOTAutograd's boxed
convention. It imports devices, code generator and IR, and never a pass.
"""
