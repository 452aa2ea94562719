"""Runs loaded programs: launched (`launch`), or replayed from CUDA graphs (`capture/`).

In: a loaded module, its constants and a device. Out: a callable that keeps AOTAutograd's boxed
convention. Tensors that a program computes only from weights are kept from call to call
(`folding/`). It never imports a pass.
"""
