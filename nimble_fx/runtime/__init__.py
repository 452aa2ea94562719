"""How a loaded program runs: launched, captured, replayed, and whose memory that is.

In: a loaded module, its constants and a device. Out: a callable that keeps AOTAutograd's boxed
convention. It imports devices, the code generator, the IR and the table of candidates, and
never a pass.
"""
