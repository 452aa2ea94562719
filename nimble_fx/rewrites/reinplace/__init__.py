"""Turns functional updates, which AOTAutograd's functionalization made, back into in-place ones.

`reinplace_updates` is the rewrite; `memory_accesses` finds what else reads and writes the memory,
and `parts_of_memory` decides whether parts of memory overlap. `mutating_operators` and
`triton_kernels` call what writes to its arguments, which AOTAutograd wraps (`wrapped_calls`), on
copies (`written_copies`) and parts (`written_views`) of these.
"""
